// SPDX-License-Identifier: Apache-2.0
// What a GPU hour of a cluster costs, by kind of price: on demand, reserved, spot.
//
// Kinds are never compared with each other: a reserved price is a promise of months, a spot price
// can be taken away, and each is a fraction of the one on demand. A cluster file says its price on
// demand as usd_per_gpu_hour and the rest under "prices":
//
//   "prices": {"on-demand": {"range": [3.49, 6.70], "range_source": ".."},
//              "spot": {"usd_per_gpu_hour": 2.27, "range": [..], "source": "..", "date": ".."}}
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/gpu_params.h"
#include "profiles/profile.h"

namespace shardwright::profiles {

enum class PriceKind : std::uint8_t { kOnDemand, kReserved, kSpot };
inline constexpr std::size_t kPriceKinds = 3;

/// "on-demand", "reserved", "spot".
std::string_view name_of(PriceKind kind);
std::optional<PriceKind> price_kind_from(std::string_view name);
std::vector<std::string> price_kind_names();

struct Price {
  double usd_per_gpu_hour = 0;  // 0: unknown
  /// What offers of this kind ask elsewhere or in other regions; both ends are the price where
  /// nothing is known of that.
  std::array<double, 2> range{};
  std::string range_source;
  Origin origin;

  bool known() const { return usd_per_gpu_hour > 0; }
};

/// By kind.
using PriceList = std::array<Price, kPriceKinds>;

/// Prices of a cluster: a shipped name or a path, as in data_file.h. Throws Error naming file and
/// key.
PriceList load_prices(const std::string& cluster);

inline constexpr int kFreshDays = 90;

/// Days from the end of the month, year or day that `date` names to `today`; none where it is no
/// date. Never below 0.
std::optional<int> age_days(std::string_view date, std::chrono::sys_days today);

/// The day that ages are counted to: of SOURCE_DATE_EPOCH where that is set (so that documents can
/// be reproduced), else of the clock; UTC.
std::chrono::sys_days today();

// A file of prices, which takes the place of what the cluster files say: "shardwright.prices/1.0",
// written by `prices import`.
//
//   {"schema": "shardwright.prices/1.0", "date": "2026-11-22",
//    "clusters": {"p5": {"on-demand": {"usd_per_gpu_hour": 6.88, "range": [6.88, 9.49],
//                                      "source": "median of 4 regions of aws"}, "spot": {..}}},
//    "gpus": {"h100-80g": {..}}}
//
// Members that a reader does not need (offers, left_out) are for people and may be absent.

struct PriceFile {
  std::map<std::string, PriceList, std::less<>> clusters, gpus;

  /// Of a cluster by its name, else of its GPU; none where the file has no such price.
  std::optional<Price> find(const std::string& cluster, const std::string& gpu,
                            PriceKind kind) const;
};

/// Throws Error naming file, key, value and what is accepted.
PriceFile load_price_file(const std::filesystem::path& path);

// Electricity of a training beside its dollars: profiles/data/energy.json, each value with its
// source and date.
//
//   kWh = GPU hours x board power x rest of the node x PUE     kg CO2 = kWh x what the grid emits

struct Energy {
  double rest_of_node = 1;  // power of a node over that of its GPUs
  double pue = 1;           // of the building over that of its nodes
  double grid_kg_per_kwh = 0;
  double standing_share = 0;                         // of board power, with clocks standing still
  double clock_exponent = 1;                         // power beyond it grows as the clock to this
  std::optional<double> limit_watts;                 // of each board, where its power is capped
  std::map<std::string, double, std::less<>> watts;  // board power, by GPU

  /// What a board draws under training load: its power, or the limit where that is lower.
  std::optional<double> drawn_watts(const std::string& gpu) const;
  /// Of `gpu_hours` of a GPU; none where its power is not known.
  std::optional<double> kwh(const std::string& gpu, double gpu_hours) const;
};

/// Throws Error naming file, path, value and what is accepted.
Energy load_energy(const std::filesystem::path& file);
/// The shipped file, profiles/data/energy.json.
Energy load_energy();

// A GPU whose board may draw fewer watts than its data sheet says (nvidia-smi --power-limit): what
// its clocks lose, and with them GEMMs and attention. Memory and links keep their rates.
//
// Under training load a GPU is held at its limit: dynamic power (the limit less what the board
// takes standing still) grows as the clock to an exponent, both in energy.json.

/// Clocks at `limit_watts` over those at the board power of `gpu`, at most 1. Throws Error where
/// the GPU's power is not known, or the limit is above it or too low to hold.
double clock_share(const Energy& energy, const std::string& gpu, double limit_watts);

/// Overrides (--set) of the profile that lower its rates that follow the clocks.
std::vector<std::string> power_limit_overrides(const Profile& profile, const Energy& energy,
                                               double limit_watts);

}  // namespace shardwright::profiles
