// SPDX-License-Identifier: Apache-2.0
#include "cli/prices/price_table.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "sim/core/base/numbers.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
using Offers = std::vector<const CatalogOffer*>;
using profiles::PriceKind;

std::optional<double> price_of(const CatalogOffer& offer, PriceKind kind) {
  if (kind == PriceKind::kSpot) return offer.spot;
  return offer.remark.empty() ? offer.on_demand : std::nullopt;
}

std::optional<ImportedPrice> imported(const Offers& offers, PriceKind kind) {
  std::map<std::string, std::map<std::string, std::vector<double>>> by_cloud;
  std::size_t count = 0;
  for (const CatalogOffer* offer : offers) {
    const std::optional<double> usd = price_of(*offer, kind);
    if (!usd) continue;
    by_cloud[offer->cloud][offer->region].push_back(*usd);
    ++count;
  }
  if (by_cloud.empty()) return std::nullopt;
  std::vector<double> of_clouds, of_regions;
  std::vector<std::string> clouds;
  for (const auto& [cloud, regions] : by_cloud) {
    of_regions.clear();
    for (const auto& [region, prices] : regions) of_regions.push_back(quantile(prices, 0.5));
    of_clouds.push_back(quantile(of_regions, 0.5));
    clouds.push_back(cloud);
  }
  const bool one = of_clouds.size() == 1;
  const std::vector<double>& prices = one ? of_regions : of_clouds;
  const bool few = prices.size() < 4;
  ImportedPrice result;
  result.offers = count;
  result.price.usd_per_gpu_hour = quantile(prices, 0.5);
  result.price.range = {quantile(prices, few ? 0 : 0.25), quantile(prices, few ? 1 : 0.75)};
  result.price.range_source = few ? "the lowest and highest of them" : "the middle half of them";
  result.price.origin.source =
      one ? fmt::format("{}, median of {} {} of the SkyPilot catalog", clouds.front(),
                        prices.size(), prices.size() == 1 ? "region" : "regions")
          : fmt::format("median of {} clouds of the SkyPilot catalog ({})", clouds.size(),
                        fmt::join(clouds, ", "));
  return result;
}

void add_row(const std::string& name, const Offers& offers, std::vector<PriceRow>& rows) {
  PriceRow row{name, imported(offers, PriceKind::kOnDemand), imported(offers, PriceKind::kSpot)};
  if (row.on_demand || row.spot) rows.push_back(std::move(row));
}

/// Whole nodes where any are on offer.
Offers like_nodes(const Offers& offers, std::int64_t gpus_per_node) {
  Offers nodes;
  std::copy_if(offers.begin(), offers.end(), std::back_inserter(nodes),
               [&](const CatalogOffer* offer) { return offer->count == gpus_per_node; });
  return nodes.empty() ? offers : nodes;
}

Json prices_json(const std::vector<PriceRow>& rows) {
  Json result = Json::object();
  const auto entry = [](const ImportedPrice& from) {
    return Json{{"usd_per_gpu_hour", from.price.usd_per_gpu_hour},
                {"range", from.price.range},
                {"range_source", from.price.range_source},
                {"source", from.price.origin.source}};
  };
  for (const PriceRow& row : rows) {
    Json& of = result[row.name];
    if (row.on_demand) of["on-demand"] = entry(*row.on_demand);
    if (row.spot) of["spot"] = entry(*row.spot);
  }
  return result;
}

Json offer_json(const CatalogOffer& offer) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  Json json{{"cloud", offer.cloud},
            {"instance", offer.instance},
            {"accelerator", offer.accelerator},
            {"count", offer.count},
            {"region", offer.region},
            {"zone", offer.zone},
            {"gpu", offer.gpu.empty() ? Json(nullptr) : Json(offer.gpu)},
            {"on_demand_usd_per_gpu_hour", or_null(offer.on_demand)},
            {"spot_usd_per_gpu_hour", or_null(offer.spot)},
            {"lines", offer.lines}};
  if (!offer.remark.empty()) json["not_counted"] = offer.remark;
  return json;
}

}  // namespace

PriceTable price_table(const Catalog& catalog, const CatalogNames& names) {
  std::map<std::string, Offers> by_gpu, by_cluster;
  for (const CatalogOffer& offer : catalog.offers) {
    if (!offer.gpu.empty()) by_gpu[offer.gpu].push_back(&offer);
    if (!offer.cluster.empty()) by_cluster[offer.cluster].push_back(&offer);
  }
  PriceTable table;
  for (const auto& [gpu, offers] : by_gpu) add_row(gpu, offers, table.gpus);
  for (const std::string& name : profiles::shipped_names(profiles::DataKind::kCluster)) {
    if (names.has_provider(name)) {
      if (const auto own = by_cluster.find(name); own != by_cluster.end())
        add_row(name, own->second, table.clusters);
      continue;
    }
    const Cluster cluster = profiles::load_cluster(name).cluster;
    const auto offers = by_gpu.find(cluster.gpu.id);
    if (offers == by_gpu.end()) continue;
    add_row(name, like_nodes(offers->second, cluster.gpus_per_node), table.clusters);
  }
  return table;
}

Json price_document(const Catalog& catalog, const PriceTable& table, const std::string& date,
                    const std::string& command) {
  Json offers = Json::array();
  for (const CatalogOffer& offer : catalog.offers) offers.push_back(offer_json(offer));
  Json document{{"schema", "shardwright.prices/1.0"}, {"date", date}};
  if (!command.empty()) document["command"] = command;
  document["clusters"] = prices_json(table.clusters);
  document["gpus"] = prices_json(table.gpus);
  document["left_out"] = catalog.left_out;
  document["files"] = catalog.files;
  document["offers"] = std::move(offers);
  return document;
}

}  // namespace shardwright::cli
