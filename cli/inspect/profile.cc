// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "cli/inspect/inspect.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "profiles/gpu_cost.h"
#include "profiles/gpu_file.h"
#include "profiles/prices/price.h"
#include "profiles/stack_file.h"

namespace shardwright::cli {
namespace {

using nlohmann::ordered_json;
using profiles::DataKind;
using profiles::Field;
using profiles::FieldList;
using profiles::Origin;
using profiles::Origins;

std::string shown_value(const Field& field) {
  return std::visit(
      [&](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) return *target ? "true" : "false";
        if constexpr (std::is_same_v<T, std::string>) return *target;
        if constexpr (std::is_same_v<T, MemoryManager>) {
          return std::string(profiles::name_of(*target));
        }
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return target->empty() ? "nothing" : fmt::format("{}", fmt::join(*target, ", "));
        }
        if constexpr (std::is_same_v<T, std::vector<double>>) {
          std::vector<std::string> parts;
          for (const double value : *target) parts.push_back(quantity(value, field.unit));
          return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, " + "));
        }
        if constexpr (std::is_arithmetic_v<T>) {
          return quantity(static_cast<double>(*target), field.unit);
        }
      },
      field.target);
}

/// A list that is too wide for its column: one word a line.
std::vector<std::string> shown_lines(const Field& field) {
  constexpr std::size_t kWidest = 32;
  std::string value = shown_value(field);
  const auto* words = std::get_if<std::vector<std::string>*>(&field.target);
  if (words == nullptr || value.size() <= kWidest) return {std::move(value)};
  return **words;
}

std::string shown_source(const Origin& origin) {
  return origin.date.empty() ? origin.source : fmt::format("{} ({})", origin.source, origin.date);
}

/// "norm" of norm.forward_bytes, "collectives.nccl" of collectives.nccl.ring_base_s.ll, "" of
/// hbm_bytes_per_s.
std::string_view section_of(std::string_view path) {
  const auto dots = std::count(path.begin(), path.end(), '.');
  if (dots == 0) return {};
  const std::size_t first = path.find('.');
  return path.substr(0, dots < 3 ? first : path.find('.', first + 1));
}

/// One row per field; a section opens with a row of its name, and all of it stands together. A
/// source that the row above has too is not repeated.
void add_rows(Table& table, const FieldList& fields, const Origins& origins) {
  std::vector<std::string_view> sections;
  for (const Field& field : fields.fields()) {
    const std::string_view section = section_of(field.path);
    if (std::find(sections.begin(), sections.end(), section) == sections.end())
      sections.push_back(section);
  }
  std::string last_source;
  for (const std::string_view section : sections) {
    if (!section.empty()) table.add_row({{std::string(section), Style::kBold}});
    for (const Field& field : fields.fields()) {
      if (section_of(field.path) != section) continue;
      const std::string name =
          section.empty() ? field.path : "  " + field.path.substr(section.size() + 1);
      const auto at = origins.find(field.path);
      const Origin origin = at == origins.end() ? Origin{"default", "", ""} : at->second;
      const std::string source = shown_source(origin);
      const std::vector<std::string> lines = shown_lines(field);
      table.add_row({name, lines.front(), origin.confidence,
                     source == last_source ? Cell("as above", Style::kDim) : Cell(source)});
      for (std::size_t i = 1; i < lines.size(); ++i) table.add_row({"", lines[i]});
      last_source = source;
    }
  }
}

/// Every value of `described`, which describe() lists, with its source.
template <typename Described>
std::string described_table(Described described, const Origins& origins, const Terminal& out) {
  FieldList fields;
  describe(fields, described);
  Table table({"value", right("is"), "confidence", "source"});
  add_rows(table, fields, origins);
  return table.render(out);
}

std::string title(const Terminal& out, const std::string& id, const std::string& description) {
  return fmt::format("{}\n{}\n", paint(out, Style::kBold, id), paragraph(description, out));
}

std::string gpu_section(const profiles::GpuFile& file, const Terminal& out) {
  return title(out, "gpu " + file.gpu.id, file.description) +
         described_table(file.gpu, file.origins, out);
}

std::string cost_section(const profiles::GpuFile& file, const Terminal& out) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  const profiles::GpuCost cost = cost_of(file, costs);
  const std::string whose =
      file.cost_as == file.gpu.id ? "" : fmt::format(" (those of {})", file.cost_as);
  return fmt::format("\n{}{}\n\n", paint(out, Style::kBold, "cost parameters"), whose) +
         described_table(cost, origins_of(cost, costs.nccl), out);
}

/// The GPU's file; the cost parameters ride along under a key that loaders take for a comment.
std::string gpu_json(const profiles::GpuFile& file) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  profiles::GpuCost cost = cost_of(file, costs);
  FieldList fields;
  describe(fields, cost);
  ordered_json document = parse_ordered_json(to_json(file));
  document["_cost"] = parse_ordered_json(write_fields(fields, origins_of(cost, costs.nccl), ""));
  return document.dump(2) + "\n";
}

/// As cluster files write them; the price on demand itself is a value of the cluster.
ordered_json prices_json(const profiles::PriceList& prices) {
  ordered_json json = ordered_json::object();
  for (std::size_t i = 0; i < prices.size(); ++i) {
    const profiles::Price& price = prices[i];
    if (!price.known()) continue;
    const auto kind = static_cast<profiles::PriceKind>(i);
    ordered_json entry = ordered_json::object();
    if (kind != profiles::PriceKind::kOnDemand) {
      entry = {{"usd_per_gpu_hour", price.usd_per_gpu_hour}, {"source", price.origin.source}};
      if (!price.origin.confidence.empty()) entry["confidence"] = price.origin.confidence;
      if (!price.origin.date.empty()) entry["date"] = price.origin.date;
    }
    entry["range"] = price.range;
    if (!price.range_source.empty()) entry["range_source"] = price.range_source;
    json[std::string(name_of(kind))] = std::move(entry);
  }
  return json;
}

/// "A GPU hour costs 2.30 USD on-demand (1.79 to 2.79), 1.23 USD spot (0.72 to 1.44)."
std::string price_words(const profiles::PriceList& prices) {
  std::vector<std::string> kinds;
  for (std::size_t i = 0; i < prices.size(); ++i) {
    const profiles::Price& price = prices[i];
    if (!price.known()) continue;
    kinds.push_back(fmt::format("{:.2f} USD {}", price.usd_per_gpu_hour,
                                name_of(static_cast<profiles::PriceKind>(i))));
    if (price.range[0] < price.range[1])
      kinds.back() += fmt::format(" ({:.2f} to {:.2f})", price.range[0], price.range[1]);
  }
  if (kinds.empty()) return "No price of its GPU hour is known.";
  return fmt::format("A GPU hour costs {}.", fmt::join(kinds, ", "));
}

std::string list_json(std::string_view key, ordered_json list) {
  ordered_json document{{"schema", "shardwright.list/1.0"}};
  document[std::string(key)] = std::move(list);
  return document.dump(2) + "\n";
}

}  // namespace

std::string inspect_cluster(const std::string& name, Form form, const Terminal& out) {
  const profiles::ClusterFile file = profiles::load_cluster(name);
  const profiles::PriceList prices = profiles::load_prices(name);
  if (form == Form::kJson) {
    ordered_json document = parse_ordered_json(to_json(file));
    if (ordered_json listed = prices_json(prices); !listed.empty())
      document["prices"] = std::move(listed);
    return document.dump(2) + "\n";
  }
  const Cluster& cluster = file.cluster;
  std::string text = title(out, "cluster " + cluster.id, file.description) +
                     described_table(cluster, file.origins, out);
  for (const profiles::SetEntry& entry : file.set) {
    const ordered_json value = parse_ordered_json(entry.value_json);
    text += fmt::format(
        "sets {} to {}\n", entry.path,
        value.is_object() && value.contains("value") ? value["value"].dump() : value.dump());
  }
  text += fmt::format("\nA node sends {} of {} line rate in large collectives.\n",
                      quantity(cluster.node_net_bytes_per_s() * cluster.nic_efficiency, "byte/s"),
                      quantity(cluster.node_net_bytes_per_s(), "byte/s"));
  text += paragraph(price_words(prices), out) + "\n" + gpu_section(file.gpu, out);
  return text + "\nOverride with --set cluster.VALUE=..., --set gpu.VALUE=...\n";
}

std::string inspect_gpu(const std::string& name, Form form, const Terminal& out) {
  const profiles::GpuFile file = profiles::load_gpu(name);
  if (form == Form::kJson) return gpu_json(file);
  return gpu_section(file, out) + cost_section(file, out) +
         "\nOverride with --set gpu.VALUE=..., --set cost.VALUE=..., for example cost.gemm.e=0.9\n";
}

std::string inspect_stack(const std::string& name, Form form, const Terminal& out) {
  const profiles::StackFile file = profiles::load_stack(name);
  if (form == Form::kJson) return to_json(file) + "\n";
  return title(out, "stack " + file.stack.id, file.stack.description) +
         described_table(file.stack, file.origins, out) +
         "\nOverride with --set stack.VALUE=..., for example stack.norm.forward_bytes=4\n";
}

std::string list_clusters(Form form, const Terminal& out) {
  Table table({"cluster", "gpu", "GPUs", "NICs", "network", "USD/GPU h", "what"});
  ordered_json list = ordered_json::array();
  for (const std::string& name : profiles::shipped_names(DataKind::kCluster)) {
    const profiles::ClusterFile file = profiles::load_cluster(name);
    const Cluster& cluster = file.cluster;
    list.push_back(
        {{"id", name},
         {"description", file.description},
         {"gpu", cluster.gpu.id},
         {"gpus_per_node", cluster.gpus_per_node},
         {"nics_per_node", cluster.nics_per_node},
         {"node_net_bytes_per_s", cluster.node_net_bytes_per_s()},
         {"usd_per_gpu_hour", cluster.usd_per_gpu_hour > 0 ? ordered_json(cluster.usd_per_gpu_hour)
                                                           : ordered_json(nullptr)}});
    table.add_row(
        {name, cluster.gpu.id, cluster.gpus_per_node, cluster.nics_per_node,
         cluster.nics_per_node == 0 ? "none" : quantity(cluster.node_net_bytes_per_s(), "byte/s"),
         cluster.usd_per_gpu_hour == 0 ? "-" : fmt::format("{:.2f}", cluster.usd_per_gpu_hour),
         file.description});
  }
  return form == Form::kJson ? list_json("clusters", std::move(list)) : table.render(out);
}

std::string list_gpus(Form form, const Terminal& out) {
  Table table({"gpu", "bf16 dense", "memory", "bandwidth", "what"});
  ordered_json list = ordered_json::array();
  for (const std::string& name : profiles::shipped_names(DataKind::kGpu)) {
    const profiles::GpuFile file = profiles::load_gpu(name);
    const Gpu& gpu = file.gpu;
    list.push_back({{"id", name},
                    {"description", file.description},
                    {"peak_bf16_flops", gpu.peak_bf16_flops},
                    {"memory_bytes", gpu.memory_bytes},
                    {"hbm_bytes_per_s", gpu.hbm_bytes_per_s}});
    table.add_row({name, quantity(gpu.peak_bf16_flops, "flop/s"), bytes(gpu.memory_bytes),
                   quantity(gpu.hbm_bytes_per_s, "byte/s"), file.description});
  }
  return form == Form::kJson ? list_json("gpus", std::move(list)) : table.render(out);
}

std::string list_stacks(Form form, const Terminal& out) {
  Table table({"stack", "memory", "what"});
  ordered_json list = ordered_json::array();
  for (const std::string& name : profiles::shipped_names(DataKind::kStack)) {
    const Stack stack = profiles::load_stack(name).stack;
    const std::string memory(profiles::name_of(stack.memory));
    list.push_back({{"id", name}, {"description", stack.description}, {"memory", memory}});
    table.add_row({name, memory, stack.description});
  }
  return form == Form::kJson ? list_json("stacks", std::move(list)) : table.render(out);
}

}  // namespace shardwright::cli
