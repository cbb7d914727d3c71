// SPDX-License-Identifier: Apache-2.0
// A table of the SkyPilot catalog, and the file of prices that is made of one.
#include "cli/prices/catalog.h"
#include "profiles/prices/price.h"
#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

void fuzz_prices(std::string_view input) {
  if (input.starts_with('{')) {
    const profiles::PriceFile file = profiles::load_price_file(scratch_file("prices.json", input));
    for (const auto& [name, prices] : file.gpus) {
      const auto price = file.find("", name, profiles::PriceKind::kOnDemand);
      SHARDWRIGHT_CHECK(!price || price->usd_per_gpu_hour > 0, "{}", name);
    }
    return;
  }
  static const cli::CatalogNames names = cli::CatalogNames::load();
  const cli::Catalog catalog = cli::read_catalog({scratch_file("gcp.csv", input).string()}, names);
  for (const cli::CatalogOffer& offer : catalog.offers) {
    SHARDWRIGHT_CHECK(offer.count > 0, "{} GPUs", offer.count);
    SHARDWRIGHT_CHECK(offer.on_demand.value_or(1) > 0 && offer.spot.value_or(1) > 0, "{}",
                      offer.instance);
  }
}

SHARDWRIGHT_FUZZ_TARGET(prices, fuzz_prices, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
