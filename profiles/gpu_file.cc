// SPDX-License-Identifier: Apache-2.0
#include "profiles/gpu_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {

namespace {

constexpr double kLargest = 1e18;  // keeps products of two values finite and integers exact
constexpr double kLeast = 1e6;     // less was given in TFLOP/s, GB/s or GB

GpuFile read_gpu(const DataFile& file, int depth) {
  GpuFile result;
  const std::optional<DataFile> base = open_base(DataKind::kGpu, file, depth);
  if (base) result = read_gpu(*base, depth + 1);
  const JsonReader root = file.json->root();
  result.gpu.id = file.id;
  if (!file.description.empty()) result.description = file.description;
  result.usual_cluster = root.optional<std::string>("usual_cluster", result.usual_cluster);
  if (root.has("other_clusters")) {
    result.other_clusters = root.require_list<std::string>("other_clusters");
  }
  result.cost_as = root.optional<std::string>("cost_as", base ? result.cost_as : file.id);
  FieldList fields;
  describe(fields, result.gpu);
  read_fields(root, fields,
              {"schema", "id", "description", "base", "usual_cluster", "other_clusters", "cost_as"},
              base.has_value(), result.origins);
  return result;
}

}  // namespace

void describe(FieldList& fields, Gpu& gpu) {
  const auto positive = between(kLeast, kLargest);
  const auto amount = between(0.0, kLargest);
  fields.add("architecture", &gpu.architecture, "", "generation, for example ampere or hopper");
  fields.add("peak_bf16_flops", &gpu.peak_bf16_flops, "flop/s",
             "dense bf16 peak with fp32 accumulation", positive);
  fields
      .add("peak_fp32_flops", &gpu.peak_fp32_flops, "flop/s", "fp32 peak outside tensor cores",
           positive)
      .believed(CostGroup::kProducts, 0.4, 4, true);
  const auto other_peak = [&](std::string_view name, double* peak, std::string_view meaning) {
    fields.add(name, peak, "flop/s", meaning, amount, Need::kOptional);
  };
  other_peak("peak_tf32_flops", &gpu.peak_tf32_flops, "dense tf32 peak; 0: the GPU has none");
  other_peak("peak_fp16_flops", &gpu.peak_fp16_flops,
             "dense fp16 peak with fp32 accumulation; 0: the GPU has none");
  other_peak("peak_fp8_flops", &gpu.peak_fp8_flops,
             "dense fp8 peak with fp32 accumulation; 0: the GPU has none");
  other_peak("peak_nvfp4_flops", &gpu.peak_nvfp4_flops,
             "dense fp4 peak with scales of blocks; 0: the GPU has none");
  fields.add("sm_count", &gpu.sm_count, "", "streaming multiprocessors", between(1.0, 100000.0));
  fields.add("hbm_bytes_per_s", &gpu.hbm_bytes_per_s, "byte/s", "device memory bandwidth, nominal",
             positive);
  fields.add("memory_bytes", &gpu.memory_bytes, "byte", "total memory as CUDA reports it",
             between(kLeast, 1e15));
  fields.add("runtime_bytes", &gpu.runtime_bytes, "byte",
             "context, libraries and communicators outside the framework's allocator",
             between(0.0, 1e15));
  fields.add("l2_bytes", &gpu.l2_bytes, "byte", "last-level cache; 0: unknown", amount);
  fields.add("pcie_bytes_per_s", &gpu.pcie_bytes_per_s, "byte/s",
             "pinned host to device copy, one direction", amount);
  const auto share = [&](std::string_view name, double* value, std::string_view meaning) {
    fields.add(name, value, "", meaning, between(0.1, 2.0), Need::kOptional);
  };
  fields.group("training_load", [&] {
    share("gemm_share", &gpu.training_load.gemm_share,
          "what GEMMs keep of their fitted rate in a training on many GPUs");
    share("stream_share", &gpu.training_load.stream_share,
          "the same of kernels that memory bounds");
  });
  fields.add("fp8_any_layout", &gpu.fp8_any_layout, "",
             "GEMMs read fp8 operands whichever dimension is last", {}, Need::kOptional);
  fields.add("mxfp8_gemm_share", &gpu.mxfp8_gemm_share, "",
             "what GEMMs in MXFP8 reach of those in fp8 with one scale a tensor; 0: it has none",
             between(0.0, 2.0), Need::kOptional);
  fields.add("row_kernel_sm_bytes_per_s", &gpu.row_kernel_sm_bytes_per_s, "byte/s",
             "one SM, in kernels of which a thread block has one row of logits; 0: unknown",
             between(0.0, 1e12), Need::kOptional);
  fields.add("overlaps_streams", &gpu.overlaps_streams, "",
             "streams run side by side, not one operation after another", {}, Need::kOptional);
  fields.add("independent_streams", &gpu.independent_streams, "",
             "each stream has a processor of its own: none slows another", {}, Need::kOptional);
}

GpuFile load_gpu(const std::string& name_or_path, const std::filesystem::path& from) {
  return read_gpu(open_data_file(DataKind::kGpu, name_or_path, from), 0);
}

GpuFile parse_gpu(std::string_view text, const std::string& name) {
  return read_gpu(parse_data_file(DataKind::kGpu, text, name), 0);
}

std::string to_json(const GpuFile& file) {
  Gpu gpu = file.gpu;
  FieldList fields;
  describe(fields, gpu);
  std::string head =
      data_file_head(DataKind::kGpu, gpu.id, file.description,
                     {{"usual_cluster", file.usual_cluster}, {"cost_as", file.cost_as}});
  if (!file.other_clusters.empty()) {
    head += ",\"other_clusters\":" + nlohmann::ordered_json(file.other_clusters).dump();
  }
  return write_fields(fields, file.origins, head);
}

namespace {

namespace fs = std::filesystem;

/// The driver and the data file may count what is reserved differently.
constexpr double kMemoryTolerance = 0.06;

/// "h100" of "h100-80g".
std::string model_word(const std::string& id) {
  return id.substr(0, id.find('-'));
}

/// Whether a name in lower case has the word of the model, and of the form where it matters.
bool same_kind(const std::string& name, const std::string& id) {
  const auto in = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  return in(name, model_word(id).c_str()) && in(name, "pcie") == in(id, "pcie") &&
         in(name, "nvl") == in(id, "nvl");
}

/// In lower case: "nvidia", "a100", "sxm4", "80gb".
std::vector<std::string> words_in(std::string_view name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : lower_case(name)) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (letter && !inside) words.emplace_back();
    if (letter) words.back() += c;
    inside = letter;
  }
  return words;
}

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// "80g" and "500w" of an id say how much.
bool is_amount(const std::string& word) {
  return word.size() > 1 && (word.back() == 'g' || word.back() == 'w') &&
         word.find_first_not_of("0123456789") == word.size() - 1;
}

std::vector<fs::path> gpu_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(data_dir() / "gpus")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool is_named_as(std::string_view name, const std::string& id) {
  const std::vector<std::string> words = words_in(name);
  std::string joined;
  for (const std::string& word : words) joined += word;
  for (const char* form : {"pcie", "nvl"}) {
    if (holds(words, form) != holds(words_in(id), form)) return false;
  }
  const bool says_memory = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.size() > 2 && word.ends_with("gb") && is_amount(word.substr(0, word.size() - 1));
  });
  for (const std::string& part : words_in(id)) {
    if (is_amount(part)) {
      if (part.back() == 'g' && says_memory && !holds(words, part + "b")) return false;
    } else if (part.find_first_of("0123456789") != part.npos && part.size() > 4) {
      // "5060ti" is "5060 Ti" to the driver.
      if (joined.find(part) == joined.npos) return false;
    } else if (!holds(words, part)) {
      return false;
    }
  }
  return true;
}

std::string kind_named(std::string_view name) {
  std::string found;
  for (const fs::path& file : gpu_files()) {
    const std::string id = file.stem().string();
    if (!is_named_as(name, id)) continue;
    if (!found.empty()) return "";
    found = id;
  }
  return found;
}

std::optional<Gpu> known_gpu(const SeenGpu& seen) {
  std::optional<Gpu> found;
  const std::string name = lower_case(seen.name);
  for (const fs::path& file : gpu_files()) {
    if (!same_kind(name, file.stem().string())) continue;
    const Gpu candidate = load_gpu(file.string()).gpu;
    const double memory = static_cast<double>(candidate.memory_bytes);
    if (candidate.sm_count != seen.multiprocessors ||
        std::abs(static_cast<double>(seen.memory_bytes) - memory) > kMemoryTolerance * memory) {
      continue;
    }
    if (found && found->peak_bf16_flops != candidate.peak_bf16_flops) return std::nullopt;
    found = candidate;
  }
  return found;
}

}  // namespace shardwright::profiles
