// SPDX-License-Identifier: Apache-2.0
#include "profiles/prices/price_file.h"

#include <array>
#include <vector>

#include "sim/core/base/json_file.h"
#include "sim/core/base/schema.h"

namespace shardwright::profiles {
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

}  // namespace shardwright::profiles
