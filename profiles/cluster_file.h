// SPDX-License-Identifier: Apache-2.0
// Clusters as data: profiles/data/clusters/*.json and users' own files of the same schema; and the
// generic clusters that rows of the ledger describe by three numbers.
//
// A cluster file names its GPU ("gpu": a shipped name or the path of a GPU file) and may carry
// "set": values of the profile, by path, that hold on this cluster in particular, such as
// {"cost.gemm.sustained_factor": {"value": 0.85, "source": ..}}. A calibrated hardware profile is a
// cluster file with a base and such a "set".
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/gpu_file.h"
#include "profiles/gpu_params.h"
#include "sim/core/cluster.h"
#include "sim/core/product_choices.h"

namespace shardwright::profiles {

/// One entry of "set", kept as text until the profile that it changes exists.
struct SetEntry {
  std::string path;
  std::string value_json;        // the entry's JSON, plain or wrapped
  std::string file;              // for errors
  std::string only_for_stack{};  // another stack leaves the entry out; empty: for every stack
};

struct ClusterFile {
  Cluster cluster;
  std::string description;
  GpuFile gpu;
  std::string gpu_reference;  // as the file has it
  std::string described_by;   // id of the file whose links it has; make_cluster: of its start
  std::vector<SetEntry> set;
  std::vector<MeasuredProduct> measured_products;
  /// The algorithms that were fastest for products on this GPU; of a file itself or, where that has
  /// none, of its base.
  ProductChoices product_choices;
  std::optional<Calibration> calibration;  // of the file itself or the nearest base that has one
  Origins origins;                         // by path within the file: "nic_efficiency"
};

/// The fields of a cluster, without those of its GPU.
void describe(FieldList& fields, Cluster& cluster);

/// `name_or_path` as in data_file.h. Throws Error naming file, path, value and what is accepted.
ClusterFile load_cluster(const std::string& name_or_path, const std::filesystem::path& from = {});
ClusterFile parse_cluster(std::string_view text, const std::string& name);

/// Throws Error when fields contradict each other, such as NICs without a rate; `where` opens the
/// sentence.
void check_cluster(const Cluster& cluster, const std::string& where);

/// A cluster of `gpu_name` with `gpus_per_node`, whose nodes have `inter_gbps_per_node` Gb/s in all
/// (none: the usual network of that GPU). What is not said is taken from the GPU's usual nodes: the
/// link inside, the line rate and efficiency of a NIC, the host. A network that one of the GPU's
/// other described clusters has makes that one the start.
ClusterFile make_cluster(const std::string& gpu_name, std::int64_t gpus_per_node,
                         std::optional<double> inter_gbps_per_node);

/// A file that changes `base` (a name, or a path relative to where the file will stand) by `set`,
/// whose values are JSON, and says how it was calibrated: {"set": ..} in the order given.
std::string calibrated_json(const std::string& id, const std::string& description,
                            const std::string& base, const std::vector<SetEntry>& set,
                            const std::vector<MeasuredProduct>& products,
                            const ProductChoices& choices, const Calibration& calibration);

/// The file's own schema with every value and its source; load_cluster reads it back.
std::string to_json(const ClusterFile& file);

// Nodes with another network than the cluster's file has: the rate of a whole node, as it is sold.

/// "400Gb/s", "3.2Tb/s", "50GB/s" as bytes per second. Throws Error naming `flag` and what is
/// accepted.
double parse_network_rate(std::string_view flag, const std::string& text);

/// Overrides (--set) that give each node `bytes_per_s`, in network cards of about the rate that the
/// cluster has.
std::vector<std::string> node_network_overrides(const Cluster& cluster, double bytes_per_s);

}  // namespace shardwright::profiles
