// SPDX-License-Identifier: Apache-2.0
#include "profiles/prices/price.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {

namespace {

constexpr std::array<std::string_view, kPriceKinds> kKindNames = {"on-demand", "reserved", "spot"};
constexpr double kMostUsd = 1e6;

Price& price_of(PriceList& list, PriceKind kind) {
  return list[static_cast<std::size_t>(kind)];
}

void read_offers(const JsonReader& from, Price& price) {
  if (!from.has("range")) return;
  const std::vector<double> range = from.require_list<double>("range");
  if (range.size() != 2 || !(range[0] > 0 && range[0] <= range[1] && range[1] <= kMostUsd))
    from.fail("range", "two rising numbers above 0, USD per GPU hour");
  price.range = {range[0], range[1]};
  price.range_source = from.find<std::string>("range_source").value_or("");
}

void read_price(const JsonReader& from, PriceKind kind, Price& price) {
  if (kind == PriceKind::kOnDemand) {
    from.reject_unknown_keys({"range", "range_source"});
  } else {
    from.reject_unknown_keys(
        {"usd_per_gpu_hour", "range", "range_source", "source", "confidence", "date"});
    price = {};
    price.usd_per_gpu_hour =
        from.require<double>("usd_per_gpu_hour", NumberRange<double>(0, kMostUsd, true));
    price.origin = {from.find<std::string>("source").value_or(""),
                    from.find<std::string>("confidence").value_or(""),
                    from.find<std::string>("date").value_or("")};
  }
  price.range = {price.usd_per_gpu_hour, price.usd_per_gpu_hour};
  read_offers(from, price);
}

/// The price on demand is a field of the cluster; "prices" may say its range, and other kinds.
void read_prices(const JsonReader& root, PriceList& list) {
  if (root.has("usd_per_gpu_hour")) {
    Price& on_demand = price_of(list, PriceKind::kOnDemand);
    on_demand = {};
    FieldList fields;
    const Field& field = fields.add("usd_per_gpu_hour", &on_demand.usd_per_gpu_hour, "USD",
                                    "price; 0: unknown", between(0.0, kMostUsd));
    on_demand.origin = read_field(root, "usd_per_gpu_hour", field);
    on_demand.range = {on_demand.usd_per_gpu_hour, on_demand.usd_per_gpu_hour};
  }
  const std::optional<JsonReader> prices = root.find_object("prices");
  if (!prices) return;
  prices->reject_unknown_keys({"on-demand", "reserved", "spot"});
  for (std::size_t i = 0; i < kPriceKinds; ++i) {
    const auto kind = static_cast<PriceKind>(i);
    if (const auto entry = prices->find_object(std::string(name_of(kind))))
      read_price(*entry, kind, price_of(list, kind));
  }
}

PriceList prices_of(const DataFile& file, int depth) {
  PriceList list;
  if (const auto base = open_base(DataKind::kCluster, file, depth))
    list = prices_of(*base, depth + 1);
  read_prices(file.json->root(), list);
  return list;
}

std::optional<std::chrono::year_month_day> last_day_of(std::string_view date) {
  using namespace std::chrono;
  const auto part = [&](std::size_t at, std::size_t size) -> std::optional<int> {
    if (date.size() < at + size) return std::nullopt;
    const std::optional<std::int64_t> value = parse_int64(date.substr(at, size));
    return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
  };
  const std::optional<int> y = part(0, 4), m = part(5, 2), d = part(8, 2);
  if (!y) return std::nullopt;
  if (date.size() == 4) return year{*y} / December / 31;
  if (!m || *m < 1 || *m > 12) return std::nullopt;
  const month of_year{static_cast<unsigned>(*m)};
  if (date.size() == 7) return year_month_day(year{*y} / of_year / last);
  if (!d) return std::nullopt;
  const year_month_day day = year{*y} / of_year / *d;
  return day.ok() ? std::optional(day) : std::nullopt;
}

}  // namespace

std::string_view name_of(PriceKind kind) {
  return name_in(kKindNames, kind);
}

std::optional<PriceKind> price_kind_from(std::string_view name) {
  return value_in<PriceKind>(kKindNames, name);
}

std::vector<std::string> price_kind_names() {
  return {kKindNames.begin(), kKindNames.end()};
}

PriceList load_prices(const std::string& cluster) {
  return prices_of(open_data_file(DataKind::kCluster, cluster, {}), 0);
}

std::optional<int> age_days(std::string_view date, std::chrono::sys_days today) {
  const std::optional<std::chrono::year_month_day> day = last_day_of(date);
  if (!day) return std::nullopt;
  return std::max(0, static_cast<int>((today - std::chrono::sys_days(*day)).count()));
}

std::chrono::sys_days today() {
  using namespace std::chrono;
  if (const char* epoch = std::getenv("SOURCE_DATE_EPOCH")) {
    if (const std::optional<std::int64_t> s = parse_int64(epoch)) {
      return floor<days>(sys_seconds(std::chrono::seconds(*s)));
    }
  }
  return floor<days>(system_clock::now());
}

namespace {

constexpr double kMostUsdPerHour = 1e6;

Price read_imported(const JsonReader& from, const std::string& date) {
  from.reject_unknown_keys({"usd_per_gpu_hour", "range", "range_source", "source", "date"});
  Price price;
  price.usd_per_gpu_hour =
      from.require<double>("usd_per_gpu_hour", NumberRange<double>(0, kMostUsdPerHour, true));
  price.range = {price.usd_per_gpu_hour, price.usd_per_gpu_hour};
  if (from.has("range")) {
    const std::vector<double> range = from.require_list<double>("range");
    if (range.size() != 2 || !(range[0] > 0 && range[0] <= range[1] && range[1] <= kMostUsdPerHour))
      from.fail("range", "two rising numbers above 0, USD per GPU hour");
    price.range = {range[0], range[1]};
    price.range_source =
        from.find<std::string>("range_source").value_or("the range of the file of prices");
  }
  price.origin = {from.find<std::string>("source").value_or(from.file()), "",
                  from.find<std::string>("date").value_or(date)};
  return price;
}

std::map<std::string, PriceList, std::less<>> read_lists(const JsonReader& root, const char* key,
                                                         const std::string& date) {
  std::map<std::string, PriceList, std::less<>> lists;
  const std::optional<JsonReader> object = root.find_object(key);
  if (!object) return lists;
  for (const std::string& name : object->keys()) {
    const JsonReader kinds = object->require_object(name);
    kinds.reject_unknown_keys({"on-demand", "reserved", "spot"});
    for (std::size_t i = 0; i < kPriceKinds; ++i) {
      const auto kind = static_cast<PriceKind>(i);
      if (const auto entry = kinds.find_object(std::string(name_of(kind))))
        lists[name][i] = read_imported(*entry, date);
    }
  }
  return lists;
}

}  // namespace

std::optional<Price> PriceFile::find(const std::string& cluster, const std::string& gpu,
                                     PriceKind kind) const {
  for (const auto& [lists, name] : {std::pair{&clusters, &cluster}, std::pair{&gpus, &gpu}}) {
    const auto at = lists->find(*name);
    if (at == lists->end()) continue;
    const Price& price = at->second[static_cast<std::size_t>(kind)];
    if (price.known()) return price;
  }
  return std::nullopt;
}

PriceFile load_price_file(const std::filesystem::path& path) {
  const JsonFile document = JsonFile::load(path);
  const JsonReader root = document.root();
  require_schema(root, "shardwright.prices", 1);
  const std::string date = root.find<std::string>("date").value_or("");
  PriceFile file;
  file.clusters = read_lists(root, "clusters", date);
  file.gpus = read_lists(root, "gpus", date);
  return file;
}

namespace {

double value_of(const JsonReader& entry, double least, double most) {
  entry.reject_unknown_keys({"value", "unit", "source", "confidence", "date"});
  entry.require<std::string>("source");
  return entry.require<double>("value", NumberRange<double>(least, most));
}

}  // namespace

std::optional<double> Energy::drawn_watts(const std::string& gpu) const {
  const auto at = watts.find(gpu);
  if (at == watts.end()) return std::nullopt;
  return std::min(at->second, limit_watts.value_or(at->second));
}

std::optional<double> Energy::kwh(const std::string& gpu, double gpu_hours) const {
  const auto board = watts.find(gpu);
  const std::optional<double> drawn = drawn_watts(gpu);
  if (!drawn) return std::nullopt;
  // The host, the switches and the fans beside the GPUs draw what they draw.
  const double node = *drawn + (rest_of_node - 1) * board->second;
  return gpu_hours * node / 1e3 * pue;
}

Energy load_energy(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {"shardwright.energy/1.0"});
  root.reject_unknown_keys({"schema", "description", "rest_of_node", "pue", "grid_kg_per_kwh",
                            "standing_share", "clock_exponent", "watts"});
  Energy energy;
  energy.rest_of_node = value_of(root.require_object("rest_of_node"), 1, 5);
  energy.pue = value_of(root.require_object("pue"), 1, 5);
  energy.grid_kg_per_kwh = value_of(root.require_object("grid_kg_per_kwh"), 0, 5);
  energy.standing_share = value_of(root.require_object("standing_share"), 0, 0.9);
  energy.clock_exponent = value_of(root.require_object("clock_exponent"), 1, 5);
  const JsonReader watts = root.require_object("watts");
  for (const std::string& gpu : watts.keys())
    energy.watts[gpu] = value_of(watts.require_object(gpu), 1, 1e5);
  return energy;
}

Energy load_energy() {
  return load_energy(data_dir() / "energy.json");
}

namespace {

/// Of board power, below which no driver lets the limit be set.
constexpr double kLeastLimit = 0.25;

}  // namespace

double clock_share(const Energy& energy, const std::string& gpu, double limit_watts) {
  const auto at = energy.watts.find(gpu);
  if (at == energy.watts.end()) {
    throw Error(fmt::format("--power-limit-watts is {:g}, but the board power of {} is not known",
                            limit_watts, gpu));
  }
  const double board = at->second;
  const double least = kLeastLimit * board;
  if (!(limit_watts >= least) || !(limit_watts <= board)) {
    throw Error(
        fmt::format("--power-limit-watts is {:g}, expected {:g} to {:g}, the board power "
                    "of {}",
                    limit_watts, least, board, gpu));
  }
  const double standing = energy.standing_share * board;
  const double dynamic = (limit_watts - standing) / (board - standing);
  return portable_exp(portable_log(dynamic) / energy.clock_exponent);
}

std::vector<std::string> power_limit_overrides(const Profile& profile, const Energy& energy,
                                               double limit_watts) {
  const double clocks = clock_share(energy, profile.cluster.gpu.id, limit_watts);
  std::vector<std::string> overrides;
  const auto lower = [&](const std::string& path, double value) {
    overrides.push_back(fmt::format("{}={}", path, value * clocks));
  };
  lower("cost.gemm.sustained_factor", profile.cost.gemm.values.sustained_factor);
  for (const auto& [kernel, attention] : profile.cost.attention) {
    lower(fmt::format("cost.attention.{}.forward_flops", kernel), attention.values.forward_flops);
    lower(fmt::format("cost.attention.{}.backward_flops", kernel), attention.values.backward_flops);
  }
  return overrides;
}

}  // namespace shardwright::profiles
