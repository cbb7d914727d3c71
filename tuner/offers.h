// SPDX-License-Identifier: Apache-2.0
// The clusters that a search may choose from, and what each costs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tuner/sizing.h"

namespace shardwright::tuner {

/// Prices that were given (--price), by the name of a cluster or of a GPU; USD per GPU and hour.
using Prices = std::map<std::string, double, std::less<>>;

/// The names of the shipped clusters that train: nobody buys processors for that.
std::vector<std::string> clusters_on_offer();

/// Loads the clusters. A price for a cluster counts before one for its GPU, and either before the
/// file's own. Throws Error for a price of a name that neither ships nor is offered.
std::vector<Offer> load_offers(const std::vector<std::string>& names, const std::string& stack,
                               const std::vector<std::string>& overrides, const Prices& prices);

/// Where the price of an offer comes from: "--price", or the source, date and confidence of the
/// file; empty when there is none.
std::string price_source(const Offer& offer, const Prices& prices);

}  // namespace shardwright::tuner
