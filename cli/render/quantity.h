// Numbers with their unit as a person writes them: 3.12e14 flop/s is "312 Tflop/s", 1.2e-5 s is
// "12 us", 84987084800 byte is "79.2 GiB".
#pragma once

#include <string>
#include <string_view>

namespace shardwright::cli {

/// At most four significant digits and a prefix that fits the unit: binary for "byte", small for
/// "s", decimal for the rest of the units; a number without unit stays plain.
std::string quantity(double value, std::string_view unit);

/// A fraction as "39.6 %".
std::string percent(double fraction, int decimals = 1);

}  // namespace shardwright::cli
