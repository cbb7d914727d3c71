// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/host_profile.h"

#include <utility>

#include "cli/machine/machine.h"
#include "profiles/stack_file.h"
#include "sim/calibrate/calibration_files.h"

namespace shardwright::cli {

profiles::ClusterFile host_cluster(int threads) {
  profiles::ClusterFile host = profiles::load_cluster(kHostCluster);
  const Processor processor = this_processor();
  profiles::ObservationSource here;
  here.file = "this machine";
  here.gpu = processor.name;
  here.sm_count = threads > 0 ? threads : processor.cores;
  here.memory_bytes = processor.memory_bytes;
  profiles::Profile generic = profiles::load_profile(kHostCluster, "native");
  for (profiles::SetEntry& entry : sim::adopt_processor({here}, "", generic))
    host.set.push_back(std::move(entry));
  return host;
}

profiles::Profile host_profile(int threads, const std::vector<std::string>& overrides) {
  return profiles::make_profile(host_cluster(threads), profiles::load_stack("native"), overrides);
}

profiles::Profile virtual_profile(const std::string& network) {
  profiles::Profile meant = profiles::load_profile(network, "native");
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
