// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/quantity.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace shardwright::cli {
namespace {

struct Prefix {
  double factor;
  std::string_view name;
};

std::string number(double value) {
  const double size = std::abs(value);
  // As digits while a person can read them: "40,050", not "4.005e+04".
  if (size >= 9999.5 && size < 1e9) return (value < 0 ? "-" : "") + thousands(size);
  return fmt::format("{:.4g}", value);
}

struct Scaled {
  double value = 0;
  std::string_view unit;
};

Scaled scaled_duration(double value_s) {
  const double size = std::abs(value_s);
  if (size == 0 || size >= 1) return {value_s, "s"};
  if (size >= 1e-3) return {value_s * 1e3, "ms"};
  if (size >= 1e-6) return {value_s * 1e6, "us"};
  return {value_s * 1e9, "ns"};
}

}  // namespace

std::string quantity(double value, std::string_view unit) {
  const double size = std::abs(value);
  if (unit == "byte") {
    static constexpr std::array<Prefix, 3> kBinary = {
        {{1024.0 * 1024 * 1024, "GiB"}, {1024.0 * 1024, "MiB"}, {1024.0, "KiB"}}};
    for (const Prefix& prefix : kBinary) {
      if (size >= prefix.factor)
        return number(value / prefix.factor) + " " + std::string(prefix.name);
    }
    return number(value) + " B";
  }
  if (unit == "s") {
    const Scaled scaled = scaled_duration(value);
    return number(scaled.value).append(" ").append(scaled.unit);
  }
  if (unit.empty()) {
    return std::trunc(value) == value && size < 1e9 ? fmt::format("{:.0f}", value) : number(value);
  }
  if (unit == "USD") return fmt::format("{:.2f} USD", value);
  const std::string_view shown = unit == "byte/s" ? "B/s" : unit;
  static constexpr std::array<Prefix, 5> kDecimal = {
      {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const Prefix& prefix : kDecimal) {
    if (size >= prefix.factor) {
      return fmt::format("{} {}{}", number(value / prefix.factor), prefix.name, shown);
    }
  }
  return fmt::format("{} {}", number(value), shown);
}

std::string bytes(double value) {
  return quantity(value, "byte");
}

std::string bytes(Bytes value) {
  return bytes(static_cast<double>(value));
}

double gib(Bytes value) {
  return static_cast<double>(value) / kGiB;
}

std::string thousands(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string plain(double value) {
  std::string text = fmt::format("{:.6g}", value);
  if (const std::size_t sign = text.find("e+"); sign != std::string::npos) {
    text.erase(sign + 1, 1);
    if (text[sign + 1] == '0') text.erase(sign + 1, 1);
  }
  return text;
}

std::string dollars(double usd) {
  if (usd >= 999.5e6) return fmt::format("{:.3g} G USD", usd / 1e9);
  if (usd >= 999.5e3) return fmt::format("{:.3g} M USD", usd / 1e6);
  if (usd >= 999.5) return fmt::format("{:.3g} k USD", usd / 1e3);
  return fmt::format("{:.3g} USD", usd);
}

std::string duration(double value_s) {
  const Scaled scaled = scaled_duration(value_s);
  const double size = std::abs(scaled.value);
  const int decimals = size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled.value, decimals, scaled.unit);
}

std::string percent(double fraction, int decimals) {
  return fmt::format("{:.{}f} %", 100 * fraction, decimals);
}

std::string deviation_text(double measured, double predicted) {
  const double ratio = measured / predicted;
  if (ratio >= 10) return fmt::format("x {:.0f}", ratio);
  return fmt::format("{:+.1f} %", 100 * (ratio - 1));
}

}  // namespace shardwright::cli
