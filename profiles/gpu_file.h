// SPDX-License-Identifier: Apache-2.0
// GPUs as data: profiles/data/gpus/*.json and users' own files of the same schema.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profiles/origin.h"
#include "sim/core/cluster.h"

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

}  // namespace shardwright::profiles
