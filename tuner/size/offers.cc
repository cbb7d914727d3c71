// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/offers.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/gpu_cost.h"
#include "profiles/ledger/ledger_profile.h"
#include "profiles/prices/energy.h"
#include "profiles/stack_file.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

namespace shardwright::tuner {
using profiles::DataKind;

std::vector<std::string> price_names(const std::string& name, const Cluster& machine) {
  return {name, machine.id, machine.gpu.id};
}

profiles::Price price_of_cluster(const std::string& name, const Cluster& machine,
                                 const Prices& given, profiles::PriceKind kind,
                                 const profiles::PriceFile& imported) {
  for (const std::string& known : price_names(name, machine)) {
    if (const auto at = given.find(known); at != given.end())
      return {at->second, {at->second, at->second}, "", {"--price", "", ""}};
  }
  if (const auto price = imported.find(machine.id, machine.gpu.id, kind)) return *price;
  return profiles::load_prices(name)[static_cast<std::size_t>(kind)];
}

void check_price_names(const Prices& given, const std::vector<std::string>& offered) {
  std::vector<std::string> known = offered;
  for (const DataKind kind : {DataKind::kCluster, DataKind::kGpu}) {
    for (const std::string& name : profiles::shipped_names(kind)) known.push_back(name);
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (const auto& [name, usd] : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error(
        fmt::format("--price names '{}', but there is no cluster or GPU of that name; the "
                    "nearest are {}",
                    name, fmt::join(nearest_few(name, known, 3), ", ")));
  }
}

std::vector<std::string> clusters_on_offer() {
  std::vector<std::string> names = profiles::shipped_names(DataKind::kCluster);
  std::erase_if(names, [](const std::string& name) {
    return profiles::load_cluster(name).cluster.gpu.is_processor();
  });
  return names;
}

std::vector<Offer> load_offers(const std::vector<std::string>& names,
                               const std::optional<std::string>& stack,
                               const std::vector<std::string>& overrides, const Prices& prices,
                               profiles::PriceKind kind, const profiles::PriceFile& imported,
                               const NodeChanges& changes) {
  // What all clusters share is read once.
  std::map<std::string, profiles::StackFile> stacks;
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  const profiles::Uncertainty uncertainty = profiles::load_uncertainty();
  const profiles::Energy energy =
      changes.power_limit_watts ? profiles::load_energy() : profiles::Energy{};
  const profiles::StackFile dividing = profiles::load_stack(profiles::usual_model_parallel_stack());
  std::vector<Offer> offers;
  std::vector<std::string> offered;
  for (const std::string& name : names) {
    Offer& offer = offers.emplace_back();
    offer.name = name;
    const profiles::ClusterFile cluster = profiles::load_cluster(name);
    std::vector<std::string> own = overrides;
    if (changes.network_bytes_per_s && cluster.cluster.nics_per_node > 0) {
      const std::vector<std::string> network =
          profiles::node_network_overrides(cluster.cluster, *changes.network_bytes_per_s);
      own.insert(own.begin(), network.begin(), network.end());
    }
    const std::string software = stack.value_or(profiles::usual_stack(cluster.cluster));
    if (!stacks.contains(software)) stacks.emplace(software, profiles::load_stack(software));
    offer.profile = profiles::make_profile(cluster, stacks.at(software), costs, own);
    if (changes.power_limit_watts &&
        *changes.power_limit_watts < energy.drawn_watts(cluster.cluster.gpu.id).value_or(0)) {
      for (std::string& value :
           profiles::power_limit_overrides(offer.profile, energy, *changes.power_limit_watts))
        own.push_back(std::move(value));
      offer.profile = profiles::make_profile(cluster, stacks.at(software), costs, own);
    }
    offer.profile.uncertainty = uncertainty;
    if (!stack && cluster.cluster.devices_per_node == 0) {
      offer.model_parallel = profiles::make_profile(cluster, dividing, costs, own);
      offer.model_parallel->uncertainty = uncertainty;
    } else if (offer.profile.stack.parallel.features().has(Feature::kTensor)) {
      offer.model_parallel = offer.profile;
    }
    const Cluster& machine = offer.profile.cluster;
    for (std::string& known : price_names(name, machine)) offered.push_back(std::move(known));
    offer.price = price_of_cluster(name, machine, prices, kind, imported);
    offer.usd_per_gpu_hour = offer.price.usd_per_gpu_hour;
    offer.profile.cluster.usd_per_gpu_hour = offer.usd_per_gpu_hour;
    if (offer.model_parallel)
      offer.model_parallel->cluster.usd_per_gpu_hour = offer.usd_per_gpu_hour;
  }
  check_price_names(prices, offered);
  return offers;
}

bool estimate_only(const Offer& offer) {
  if (offer.profile.cost.gemm.provenance.confidence != "estimate") return false;
  const auto has = [&](const std::vector<std::string>& gpus) {
    return std::find(gpus.begin(), gpus.end(), offer.profile.cluster.gpu.id) != gpus.end();
  };
  const auto& seen = offer.profile.uncertainty.seen;
  if (const auto gpus = seen.find("gpu"); gpus != seen.end() && has(gpus->second)) return false;
  const profiles::ModelParallelRuns* model_parallel =
      offer.model_parallel
          ? profiles::model_parallel_uncertainty().runs_of(offer.model_parallel->stack.family)
          : nullptr;
  return model_parallel == nullptr || !has(model_parallel->gpus);
}

std::string price_source(const Offer& offer) {
  if (!offer.price.known()) return "";
  std::string words = offer.price.origin.source;
  if (!offer.price.origin.date.empty()) words += ", " + offer.price.origin.date;
  return words;
}

}  // namespace shardwright::tuner
