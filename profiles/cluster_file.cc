// SPDX-License-Identifier: Apache-2.0
#include "profiles/cluster_file.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {

namespace {

namespace fs = std::filesystem;

constexpr double kLargestAmount = 1e18;
constexpr double kLeastLink = 1e6;  // less was given in GB/s or Gb/s
constexpr double kBytesPerGbit = 1e9 / 8;
constexpr std::int64_t kMostGpusPerNode = 4096;
/// More GPUs than one board carries: a node that is a rack.
constexpr std::int64_t kMostGpusOfABoard = 16;

/// "Gb/s of a node" in words of the price: where it comes from and when.
std::string price_note(const Origins& origins) {
  const auto price = origins.find("usd_per_gpu_hour");
  if (price == origins.end()) return "";
  std::string note = price->second.source;
  if (!price->second.date.empty()) note += ", " + price->second.date;
  if (!price->second.confidence.empty()) note += ", " + price->second.confidence;
  return note;
}

void read_set(const JsonReader& root, ClusterFile& result) {
  const std::optional<JsonReader> set = root.find_object("set");
  if (!set) return;
  for (const std::string& path : set->keys()) {
    if (path.starts_with('_')) continue;
    result.set.push_back({path, set->raw().at(path).dump(), root.file(), ""});
  }
  // Those of a base among them, each before what is given in its place.
  std::stable_sort(result.set.begin(), result.set.end(),
                   [](const SetEntry& a, const SetEntry& b) { return a.path < b.path; });
}

void read_measurements(const JsonReader& root, ClusterFile& result) {
  if (const auto products = root.find_array("measured_products")) {
    // Later ones win over those of the base (sim/cost/op_cost.h).
    for (const MeasuredProduct& product : read_measured_products(*products)) {
      result.measured_products.push_back(product);
    }
  }
  if (const auto choices = root.find_object("product_choices")) {
    result.product_choices = read_product_choices(*choices);
  }
  if (const auto calibration = root.find_object("calibration")) {
    result.calibration = read_calibration(*calibration);
    // Values of a stack that was calibrated hold for that stack only, and all values that moved for
    // a whole step of it.
    const bool of_steps = !result.calibration->anchors.empty();
    for (SetEntry& entry : result.set) {
      if (entry.file == root.file() && (of_steps || entry.path.starts_with("stack."))) {
        entry.only_for_stack = result.calibration->stack;
      }
    }
  }
}

void read_gpu_reference(const DataFile& file, bool has_base, ClusterFile& result) {
  const JsonReader root = file.json->root();
  if (has_base && !root.has("gpu")) return;
  result.gpu_reference = root.require<std::string>("gpu");
  result.gpu = load_gpu(result.gpu_reference, file.path.parent_path());
}

ClusterFile read_cluster(const DataFile& file, int depth) {
  ClusterFile result;
  const std::optional<DataFile> base = open_base(DataKind::kCluster, file, depth);
  if (base) result = read_cluster(*base, depth + 1);
  const JsonReader root = file.json->root();
  result.cluster.id = result.described_by = file.id;
  if (!file.description.empty()) result.description = file.description;
  read_gpu_reference(file, base.has_value(), result);
  result.cluster.gpu = result.gpu.gpu;
  FieldList fields;
  describe(fields, result.cluster);
  read_fields(root, fields,
              {"schema", "id", "description", "base", "gpu", "set", "measured_products",
               "product_choices", "calibration", "prices"},
              base.has_value(), result.origins);
  read_set(root, result);
  read_measurements(root, result);
  result.cluster.price_note = price_note(result.origins);
  check_cluster(result.cluster, root.file());
  return result;
}

}  // namespace

void describe(FieldList& fields, Cluster& cluster) {
  const auto amount = between(0.0, kLargestAmount);
  fields.add("gpus_per_node", &cluster.gpus_per_node, "", "GPUs that share the fast link",
             between<double>(1, kMostGpusPerNode));
  fields.add("devices_per_node", &cluster.devices_per_node, "",
             "devices that the ranks of a node share; 0: each rank has its own",
             between<double>(0, kMostGpusPerNode), Need::kOptional);
  fields.add("nvlink_domain", &cluster.nvlink_domain, "",
             "GPUs that NVLink joins, where those are more than a node's; 0: a node's",
             between<double>(0, kMostGpusPerNode), Need::kOptional);
  fields.add("nvlink", &cluster.nvlink, "", "GPUs of a node are linked by NVLink, not by PCIe");
  fields.add("intra_link_bytes_per_s", &cluster.intra_link_bytes_per_s, "byte/s",
             "link inside the node, per direction and GPU", amount);
  fields.add("nics_per_node", &cluster.nics_per_node, "",
             "network cards of a node; 0: nodes are not linked", between(0.0, 4096.0));
  fields.add("nic_bytes_per_s", &cluster.nic_bytes_per_s, "byte/s",
             "line rate of one card, per direction", amount);
  fields
      .add("nic_efficiency", &cluster.nic_efficiency, "",
           "share of the line rate that large ring collectives reach",
           NumberRange<double>(0, 1, true))
      .believed(CostGroup::kCollectives, 0.3);
  fields
      .add("net_latency_s", &cluster.net_latency_s, "s",
           "per ring step between nodes, beyond NCCL's own table", between(0.0, 1.0))
      .believed(CostGroup::kCollectives, 1.0, 2);
  fields.add("network", &cluster.network, "",
             "kind of the network between nodes: infiniband, roce, efa, slingshot, ethernet", {},
             Need::kOptional);
  fields.add("amd_host", &cluster.amd_host, "", "the host CPU is AMD's");
  fields.add("usd_per_gpu_hour", &cluster.usd_per_gpu_hour, "USD", "price; 0: unknown",
             between(0.0, 1e6), Need::kOptional);
}

ClusterFile load_cluster(const std::string& name_or_path, const fs::path& from) {
  return read_cluster(open_data_file(DataKind::kCluster, name_or_path, from), 0);
}

ClusterFile parse_cluster(std::string_view text, const std::string& name) {
  return read_cluster(parse_data_file(DataKind::kCluster, text, name), 0);
}

void check_cluster(const Cluster& cluster, const std::string& where) {
  if (!cluster.network.empty() && std::find(std::begin(kNetworks), std::end(kNetworks),
                                            cluster.network) == std::end(kNetworks)) {
    throw Error(fmt::format("{}: network is '{}', expected one of {}", where, cluster.network,
                            fmt::join(kNetworks, ", ")));
  }
  if (cluster.gpus_per_node > 1 && cluster.intra_link_bytes_per_s < kLeastLink) {
    throw Error(fmt::format(
        "{}: intra_link_bytes_per_s is {}, expected at least {} bytes per second because a node "
        "has {} GPUs",
        where, cluster.intra_link_bytes_per_s, kLeastLink, cluster.gpus_per_node));
  }
  if (cluster.nics_per_node > 0 && cluster.nic_bytes_per_s < kLeastLink) {
    throw Error(fmt::format(
        "{}: nic_bytes_per_s is {}, expected at least {} bytes per second because a node has {} "
        "NICs (or nics_per_node 0 for nodes that are not linked)",
        where, cluster.nic_bytes_per_s, kLeastLink, cluster.nics_per_node));
  }
}

ClusterFile make_cluster(const std::string& gpu_name, std::int64_t gpus_per_node,
                         std::optional<double> inter_gbps_per_node) {
  if (gpus_per_node < 1 || gpus_per_node > kMostGpusPerNode) {
    throw Error(fmt::format("gpus_per_node is {}, expected an integer from 1 to {}", gpus_per_node,
                            kMostGpusPerNode));
  }
  const GpuFile gpu = load_gpu(gpu_name);
  if (gpu.usual_cluster.empty()) {
    throw Error(fmt::format(
        "gpu '{}' has no usual_cluster in its file, expected the name of a cluster to take the "
        "links of its nodes from",
        gpu_name));
  }
  ClusterFile result = load_cluster(gpu.usual_cluster);
  for (const std::string& other : gpu.other_clusters) {
    if (!inter_gbps_per_node) break;
    ClusterFile candidate = load_cluster(other);
    if (candidate.cluster.gpus_per_node == gpus_per_node &&
        candidate.cluster.node_net_bytes_per_s() == *inter_gbps_per_node * kBytesPerGbit) {
      result = std::move(candidate);
      break;
    }
  }
  const std::string start = result.cluster.id;
  Cluster& cluster = result.cluster;
  result.gpu = gpu;
  result.gpu_reference = gpu_name;
  cluster.gpu = gpu.gpu;
  // A tray of a rack that NVLink joins: the tray has its part of the rack's NICs.
  if (const std::int64_t rack = cluster.gpus_per_node;
      rack > kMostGpusOfABoard && gpus_per_node < rack) {
    cluster.nvlink_domain = rack;
    cluster.nics_per_node = std::max<std::int64_t>(1, cluster.nics_per_node * gpus_per_node / rack);
  }
  cluster.gpus_per_node = gpus_per_node;
  cluster.id = fmt::format("{}x{}", gpus_per_node, gpu_name);
  cluster.usd_per_gpu_hour = 0;
  cluster.price_note.clear();
  result.description = fmt::format("{} GPUs a node, the rest as {}", gpus_per_node, start);
  result.origins.erase("usd_per_gpu_hour");
  result.origins["gpus_per_node"] = {"as asked for", "", ""};
  if (!inter_gbps_per_node) return result;

  const double bytes_per_s = *inter_gbps_per_node * kBytesPerGbit;
  if (!(bytes_per_s >= 0 && bytes_per_s < kLargestAmount)) {
    throw Error(fmt::format("the network between nodes is {} Gb/s, expected a number of at least 0",
                            *inter_gbps_per_node));
  }
  cluster.id += fmt::format("-{}g", *inter_gbps_per_node);
  const double line_rate = cluster.nic_bytes_per_s > 0 ? cluster.nic_bytes_per_s : bytes_per_s;
  cluster.nics_per_node =
      bytes_per_s > 0 ? std::max<std::int64_t>(1, std::llround(bytes_per_s / line_rate)) : 0;
  if (cluster.nics_per_node > 0) {
    cluster.nic_bytes_per_s = bytes_per_s / static_cast<double>(cluster.nics_per_node);
  }
  cluster.network.clear();
  result.origins.erase("network");
  result.origins["nics_per_node"] = {"as asked for, in NICs of the usual rate", "", ""};
  result.origins["nic_bytes_per_s"] = {"as asked for, over the number of NICs", "", ""};
  return result;
}

std::string calibrated_json(const std::string& id, const std::string& description,
                            const std::string& base, const std::vector<SetEntry>& set,
                            const std::vector<MeasuredProduct>& products,
                            const ProductChoices& choices, const Calibration& calibration) {
  using nlohmann::ordered_json;
  ordered_json document = parse_ordered_json(
      "{" + data_file_head(DataKind::kCluster, id, description, {{"base", base}}) + "}");
  document["set"] = ordered_json::object();
  for (const SetEntry& entry : set) {
    document["set"][entry.path] = parse_ordered_json(entry.value_json);
  }
  document["measured_products"] = parse_ordered_json(to_json(products));
  if (!choices.choices.empty()) {
    document["product_choices"] = parse_ordered_json(to_json(choices));
  }
  document["calibration"] = parse_ordered_json(to_json(calibration));
  return document.dump(1) + "\n";
}

std::string to_json(const ClusterFile& file) {
  Cluster cluster = file.cluster;
  FieldList fields;
  describe(fields, cluster);
  std::string head = data_file_head(DataKind::kCluster, cluster.id, file.description,
                                    {{"gpu", file.gpu_reference}});
  if (!file.set.empty()) {
    nlohmann::ordered_json set;
    for (const SetEntry& entry : file.set) {
      set[entry.path] = parse_ordered_json(entry.value_json);
    }
    head += ",\"set\":" + set.dump();
  }
  if (!file.measured_products.empty()) {
    head += ",\"measured_products\":" + to_json(file.measured_products);
  }
  if (!file.product_choices.choices.empty()) {
    head += ",\"product_choices\":" + to_json(file.product_choices);
  }
  if (file.calibration) head += ",\"calibration\":" + to_json(*file.calibration);
  return write_fields(fields, file.origins, head);
}

double parse_network_rate(std::string_view flag, const std::string& text) {
  // Bits are small, bytes are large letters, as networks are sold.
  static constexpr std::array<std::pair<std::string_view, double>, 8> kUnits = {{{"Tb/s", 1.25e11},
                                                                                 {"Tbps", 1.25e11},
                                                                                 {"Gb/s", 1.25e8},
                                                                                 {"Gbps", 1.25e8},
                                                                                 {"Gbit/s", 1.25e8},
                                                                                 {"TB/s", 1e12},
                                                                                 {"GB/s", 1e9},
                                                                                 {"MB/s", 1e6}}};
  for (const auto& [unit, bytes_per_s] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const double rate = parse_number(flag, text.substr(0, text.size() - unit.size())) * bytes_per_s;
    if (rate >= 1e6 && rate < 1e15) return rate;
  }
  throw Error(
      fmt::format("{} is '{}', expected a rate of one node such as 400Gb/s, 3.2Tb/s or "
                  "50GB/s",
                  flag, text));
}

std::vector<std::string> node_network_overrides(const Cluster& cluster, double bytes_per_s) {
  const double line_rate = cluster.nic_bytes_per_s > 0 ? cluster.nic_bytes_per_s : bytes_per_s;
  const std::int64_t cards = std::max<std::int64_t>(1, std::llround(bytes_per_s / line_rate));
  return {fmt::format("cluster.nics_per_node={}", cards),
          fmt::format("cluster.nic_bytes_per_s={}", bytes_per_s / static_cast<double>(cards))};
}

}  // namespace shardwright::profiles
