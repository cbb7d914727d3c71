// SPDX-License-Identifier: Apache-2.0
// One price for each GPU and each cluster out of many offers, as a file that `size --prices` reads
// (profiles/prices/price.h).
//
// A cloud lists one machine in every region and zone, so offers are not votes: the price of a cloud
// is the median over its regions, that of a region the median over its zones, and the price of a
// GPU the median over clouds. A cluster that is one provider's own (p5) gets the prices of that
// provider's machine alone; every other shipped cluster gets those of its GPU, of machines with as
// many GPUs as its nodes where any are offered. The range is the middle half of the prices it is
// the median of, or the lowest and highest where they are fewer than four.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/prices/catalog.h"
#include "profiles/prices/price.h"

namespace shardwright::cli {

struct ImportedPrice {
  profiles::Price price;
  std::size_t offers = 0;
};

struct PriceRow {
  std::string name;  // of the cluster or GPU
  std::optional<ImportedPrice> on_demand, spot;
};

struct PriceTable {
  std::vector<PriceRow> clusters, gpus;  // those with a price, in alphabetical order
};

PriceTable price_table(const Catalog& catalog, const CatalogNames& names);

/// The document "shardwright.prices/1.0". `command` may be empty.
nlohmann::ordered_json price_document(const Catalog& catalog, const PriceTable& table,
                                      const std::string& date, const std::string& command);

}  // namespace shardwright::cli
