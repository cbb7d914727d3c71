// SPDX-License-Identifier: Apache-2.0
// How the SkyPilot catalog calls what this project knows: profiles/data/skypilot.json.
//
// Accelerator names are the clouds' own and mean different cards in different clouds ("A100-80GB"
// is the PCIe card at one and the SXM card at the others), so each entry may be tied to a cloud, to
// names of machines and to the memory of one GPU; the first that applies counts. A name that no
// entry maps is left out rather than guessed. '*' in a pattern stands for any letters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli {

struct CatalogMachine {
  std::string cloud, instance, accelerator;
  std::int64_t count = 0;                // GPUs of the machine
  std::optional<double> gpu_memory_mib;  // of one GPU, where the cloud says it rightly
};

class CatalogNames {
 public:
  /// The shipped file. Throws Error.
  static CatalogNames load();

  /// The shipped GPU, or "" for one that this project does not know or cannot tell.
  std::string gpu_of(const CatalogMachine& machine) const;
  /// What most clouds call a shipped GPU; "" where none has it.
  std::string accelerator_of(std::string_view gpu) const;
  /// The shipped cluster that is made of such machines, or "".
  std::string cluster_of(const CatalogMachine& machine) const;
  /// Whether the cluster is one provider's own, so that others' prices say nothing of it.
  bool has_provider(std::string_view cluster) const;
  /// Of a cloud that prices hosts and GPUs apart: the name of the host of `count` such GPUs.
  std::optional<std::string> host_of(std::string_view cloud, std::string_view accelerator,
                                     std::int64_t count) const;
  bool prices_hosts_apart(std::string_view cloud) const;
  /// Why the numbers of a cloud are no prices; empty where they are.
  std::string no_prices(std::string_view cloud) const;
  /// What stands in a price column for "not sold here"; 0: nothing does.
  double sentinel(std::string_view cloud) const;
  /// Whether the cloud lists prices for a commitment among those on demand.
  bool lists_commitments(std::string_view cloud) const;
  /// Whether GpuInfo of the cloud holds the memory of all GPUs of the machine.
  bool tells_memory(std::string_view cloud) const;

 private:
  struct Gpu {
    std::string cloud, accelerator, instance, gpu;
    std::optional<double> least_mib, most_mib;
  };
  struct OwnCluster {
    std::string cloud, instance, cluster;
  };
  struct Host {
    std::string cloud, instance, accelerator;  // instance holds {n}
    std::int64_t count = 0;                    // 0: any
  };
  struct Cloud {
    std::string no_prices;
    double sentinel = 0;
    bool commitments = false, memory = false;
  };
  std::vector<Gpu> gpus_;
  std::vector<OwnCluster> clusters_;
  std::vector<Host> hosts_;
  std::map<std::string, Cloud, std::less<>> clouds_;
};

/// '*' stands for any letters; the whole word must match.
bool matches_pattern(std::string_view pattern, std::string_view word);

}  // namespace shardwright::cli
