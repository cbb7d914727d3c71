// SPDX-License-Identifier: Apache-2.0
// Numbers with their unit as a person writes them: 3.12e14 flop/s is "312 Tflop/s", 1.2e-5 s is
// "12 us", 84987084800 byte is "79.2 GiB".
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "sim/core/units.h"

namespace shardwright::cli {

/// At most four significant digits and a prefix that fits the unit: binary for "byte", small for
/// "s", decimal for the rest of the units; a number without unit stays plain.
std::string quantity(double value, std::string_view unit);

/// A size in memory or of a message: "79.15 GiB".
std::string bytes(Bytes value);
std::string bytes(double value);
double gib(Bytes value);

/// A whole number of at least 0 as "1,234,567".
std::string thousands(double value);
template <std::integral Whole>
std::string thousands(Whole value) {
  return thousands(static_cast<double>(value));
}

/// "1 rank", "8 ranks".
template <std::integral Whole>
std::string counted(Whole count, std::string_view what) {
  return std::to_string(count).append(" ").append(what).append(count == 1 ? "" : "s");
}

/// A large number as short as it can be read: "2e12", "1.5e13", "350000".
std::string plain(double value);

/// Dollars as a person says them: "1.23 M USD", "45.6 k USD", "789 USD".
std::string dollars(double usd);

/// A duration with exactly four significant digits, so that columns of them line up: 9 s is
/// "9.000 s".
std::string duration(double value_s);

/// A fraction as "39.6 %".
std::string percent(double fraction, int decimals = 1);

/// "+1.8 %"; from 1000 % on as a multiple, "x 57".
std::string deviation_text(double measured, double predicted);

}  // namespace shardwright::cli
