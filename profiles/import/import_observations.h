// SPDX-License-Identifier: Apache-2.0
// Files that other tools wrote about a machine, as observations of it.
//
// Traces of torch.profiler (Kineto, plain or gzip), logs of nccl-tests, and databases of
// `nsys export --type sqlite` where SQLite was found at build time; each file's format is told from
// its content. Several files of one job, one per rank, share the numbering of collectives, so that
// the least time over ranks can be taken. Own traces need the schedule that their ids refer to and
// are read by sim/trace/observations.h: sort the files with detect_format first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "profiles/observation.h"
#include "sim/core/model.h"

namespace shardwright::profiles {

struct ImportOptions {
  /// GPUs of a node, which says on how many nodes a group lies; 0: the devices a trace lists.
  std::int64_t gpus_per_node = 0;
  bool gpus_per_node_given = false;  // by a person, not taken from a base
  /// What was trained, where it is known: element-wise operators are told apart by its sizes.
  std::optional<Model> model;
  /// Operations of a file that are kept, so that a hostile one takes bounded memory; a trace of
  /// 1 GB holds about 400,000.
  std::size_t max_operations = std::size_t{1} << 20;
};

enum class TraceFormat { kShardwright, kKineto, kNcclTests, kNsys, kUnknown };

/// "shardwright", "kineto", "nccl-tests", "nsys", "unknown".
std::string_view name_of(TraceFormat format);

/// By the first 256 KiB, uncompressed. Throws Error when the file cannot be read.
TraceFormat detect_format(const std::filesystem::path& path);

/// Observations of all files together; `sources` follow the order of `files`. What could not be
/// used is in `left_out` and `notes`. Throws Error for a file that cannot be read, is of an unknown
/// format, is an own trace, or holds nothing at all.
ObservationSet import_observations(const std::vector<std::filesystem::path>& files,
                                   const ImportOptions& options = {});

}  // namespace shardwright::profiles
