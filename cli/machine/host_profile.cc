// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/host_profile.h"

#include "cli/machine/processor.h"
#include "profiles/cost_fields.h"
#include "sim/calibrate/gather.h"

namespace shardwright::cli {

profiles::Profile host_profile(int threads, const std::vector<std::string>& overrides) {
  profiles::Profile profile = profiles::load_profile(kHostCluster, "native");
  profiles::ObservationSource here;
  here.sm_count = threads;
  here.memory_bytes = this_processor().memory_bytes;
  sim::adopt_processor({here}, "", profile);
  for (const std::string& key_value : overrides) profiles::override_value(profile, key_value);
  profiles::follow_gpu(profile.cost, profile.cluster.gpu);
  return profile;
}

profiles::Profile virtual_profile(const std::string& network) {
  const profiles::Profile meant = profiles::load_profile(network, "native");
  if (meant.cluster.gpu.independent_streams) return meant;
  profiles::Profile profile = profiles::load_profile(kVirtualCluster, "native");
  const Gpu core = profile.cluster.gpu;
  const std::string id = profile.cluster.id;
  profile.cluster = meant.cluster;
  profile.cluster.id = id;
  profile.cluster.gpu = core;
  profile.cost.collectives = meant.cost.collectives;
  return profile;
}

}  // namespace shardwright::cli
