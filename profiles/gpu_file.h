// SPDX-License-Identifier: Apache-2.0
// GPUs as data: profiles/data/gpus/*.json and users' own files of the same schema.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/gpu_params.h"
#include "sim/core/cluster.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

class FieldList;

struct GpuFile {
  Gpu gpu;
  std::string description;
  std::string usual_cluster;  // the nodes this GPU is mostly sold in; make_cluster starts from it
  std::vector<std::string> other_clusters;  // described nodes with another network; make_cluster
                                            // starts from the one whose network is asked for
  std::string cost_as;  // the GPU whose fitted cost parameters apply; may be its own id
  Origins origins;      // by path within the file: "hbm_bytes_per_s"
};

/// The fields of a GPU: data sheet, memory as CUDA reports it, and what of it is lost to the
/// runtime.
void describe(FieldList& fields, Gpu& gpu);

/// `name_or_path` as in data_file.h. Throws Error naming file, path, value and what is accepted.
GpuFile load_gpu(const std::string& name_or_path, const std::filesystem::path& from = {});
GpuFile parse_gpu(std::string_view text, const std::string& name);

/// The file's own schema with every value and its source; load_gpu reads it back.
std::string to_json(const GpuFile& file);

// Which GPU kind of the profiles a device is, by what a driver or a trace says of it.

struct SeenGpu {
  std::string name;  // "NVIDIA H200"
  std::int64_t multiprocessors = 0;
  Bytes memory_bytes = 0;
};

/// The kind that this is, by a word of its name, its multiprocessors and its memory; none when no
/// kind or several fit.
std::optional<Gpu> known_gpu(const SeenGpu& seen);

/// Whether a driver's name is that of the kind `id`, as far as names tell: "NVIDIA A100-SXM4-80GB"
/// of a100-80g, not of a100-40g.
bool is_named_as(std::string_view name, const std::string& id);

/// The only kind of the profiles with that name, or "".
std::string kind_named(std::string_view name);

}  // namespace shardwright::profiles
