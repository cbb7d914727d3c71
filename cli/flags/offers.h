// The clusters that `size` may choose from, and what each costs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tuner/sizing.h"

namespace shardwright::cli {

/// --price NAME=USD, by the name of a cluster or of a GPU; USD per GPU and hour.
using Prices = std::map<std::string, double, std::less<>>;

/// Adds one NAME=USD. Throws Error when it is none.
void add_price(Prices& prices, const std::string& text);

/// --clusters all, or names and paths joined by commas. Throws Error for one that is named twice.
std::vector<std::string> cluster_names(const std::string& text);

/// Loads the clusters. A price for a cluster counts before one for its GPU, and either before the
/// file's own. Throws Error for a price of a name that neither ships nor is offered.
std::vector<tuner::Offer> load_offers(const std::vector<std::string>& names,
                                      const std::string& stack,
                                      const std::vector<std::string>& overrides,
                                      const Prices& prices);

/// Where the price of an offer comes from: "--price", or the source, date and confidence of the
/// file; empty when there is none.
std::string price_source(const tuner::Offer& offer, const Prices& prices);

}  // namespace shardwright::cli
