// SPDX-License-Identifier: Apache-2.0
// The clusters that a search may choose from, and what each costs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiles/prices/price.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

/// Prices that were given (--price), by the name of a cluster or of a GPU; USD per GPU and hour.
using Prices = std::map<std::string, double, std::less<>>;

/// Of a GPU hour of a cluster, a shipped name or a path: what was `given` for the cluster or its
/// GPU, else what was `imported`, else what its own file says.
profiles::Price price_of_cluster(const std::string& name, const Cluster& machine,
                                 const Prices& given, profiles::PriceKind kind,
                                 const profiles::PriceFile& imported);

/// Throws Error for a price of a name that neither ships nor is among the `offered` ones.
void check_price_names(const Prices& given, const std::vector<std::string>& offered);

/// Names that a price for this cluster may be given by.
std::vector<std::string> price_names(const std::string& name, const Cluster& machine);

/// The names of the shipped clusters that train: nobody buys processors for that.
std::vector<std::string> clusters_on_offer();

/// What all nodes on offer have in place of what their files say.
struct NodeChanges {
  std::optional<double> network_bytes_per_s;  // of a whole node
  /// Cap of a board's power; boards that draw less keep their clocks.
  std::optional<double> power_limit_watts;
};

/// Loads the clusters with a stack, or with the usual ones of each
/// (profiles/ledger/ledger_profile.h), and their prices of one kind. A price for a cluster counts
/// before one for its GPU, what was given before `imported`, and either before the file's own.
/// Throws Error for a price of a name that neither ships nor is offered, and for a power limit that
/// a GPU cannot hold.
std::vector<Offer> load_offers(const std::vector<std::string>& names,
                               const std::optional<std::string>& stack,
                               const std::vector<std::string>& overrides, const Prices& prices,
                               profiles::PriceKind kind = profiles::PriceKind::kOnDemand,
                               const profiles::PriceFile& imported = {},
                               const NodeChanges& changes = {});

/// Whether the rates of its GPU are estimates and no published run of software that could answer
/// for it was on it.
bool estimate_only(const Offer& offer);

/// Where the price of an offer comes from: "--price", or the source and date of the file; empty
/// when there is none.
std::string price_source(const Offer& offer);

}  // namespace shardwright::tuner
