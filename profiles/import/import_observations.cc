// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/import_observations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "profiles/import/byte_stream.h"
#include "profiles/import/nccl_tests.h"
#include "profiles/import/observe.h"
#include "profiles/import/trace_tables.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

void note_missing_ranks(ObservationSet& set) {
  std::set<std::int32_t> seen;
  std::int64_t world = 0;
  for (const ObservationSource& source : set.sources) {
    if (source.format != "kineto" || source.world_size <= 1) continue;
    world = std::max(world, source.world_size);
    if (!seen.insert(source.rank).second) {
      set.notes.push_back(
          fmt::format("Rank {} is there twice, the second time as {}.", source.rank, source.file));
    }
  }
  const auto missing = world - static_cast<std::int64_t>(seen.size());
  if (missing > 0) {
    set.notes.push_back(fmt::format(
        "{} of {} ranks are there: a collective's time is the least over these ranks, and may hold "
        "waiting for a rank that is not.",
        seen.size(), world));
  }
}

void add_tables(TraceTables tables, const ImportOptions& options, CollectiveInstances& instances,
                ObservationSet& set) {
  const JoinCounts counts = join(tables);
  if (counts.ambiguous > 0) {
    tables.notes.push_back(fmt::format(
        "{}: {} launches share their correlation id with another; the latest one before a kernel "
        "was taken.",
        tables.source.file, counts.ambiguous));
  }
  if (counts.without_call > 0) {
    tables.notes.push_back(fmt::format("{}: the launch of {} of {} kernels is not in the trace.",
                                       tables.source.file, counts.without_call,
                                       tables.device.size()));
  }
  observe(tables, options, instances, set);
}

}  // namespace

std::string_view name_of(TraceFormat format) {
  static constexpr std::array<std::string_view, 5> kNames = {"shardwright", "kineto", "nccl-tests",
                                                             "nsys", "unknown"};
  static_assert(kNames.size() == static_cast<std::size_t>(TraceFormat::kUnknown) + 1);
  return name_in(kNames, format);
}

TraceFormat detect_format(const std::filesystem::path& path) {
  std::string head(std::size_t{256} << 10, '\0');
  ByteStream stream(path);
  std::size_t size = 0;
  while (size < head.size()) {
    const std::size_t got = stream.read(head.data() + size, head.size() - size);
    if (got == 0) break;
    size += got;
  }
  head.resize(size);
  if (head.starts_with(std::string_view("SQLite format 3\0", 16))) return TraceFormat::kNsys;
  const std::size_t start = head.find_first_not_of(" \t\r\n");
  if (start == std::string::npos) return TraceFormat::kUnknown;
  const auto has = [&](std::string_view text) { return head.find(text) != std::string::npos; };
  // Lines may begin with "[1,0]<stdout>:", so this comes before JSON.
  if (looks_like_nccl_tests(head) && !has("\"ph\"")) return TraceFormat::kNcclTests;
  if (head[start] == '{' || head[start] == '[') {
    // Args of an operation of a Schedule (sim/core/chrome_trace.cc); other tools write neither.
    if (has("\"micro_step\":") && has("\"kind\":")) return TraceFormat::kShardwright;
    if (has("\"traceEvents\"") || has("\"deviceProperties\"") || has("\"ph\"")) {
      return TraceFormat::kKineto;
    }
  }
  return TraceFormat::kUnknown;
}

ObservationSet import_observations(const std::vector<std::filesystem::path>& files,
                                   const ImportOptions& options) {
  ObservationSet set;
  CollectiveInstances instances;
  for (const std::filesystem::path& file : files) {
    switch (detect_format(file)) {
      case TraceFormat::kKineto:
        add_tables(read_kineto(file), options, instances, set);
        break;
      case TraceFormat::kNcclTests:
        read_nccl_tests(file, {options.gpus_per_node, options.gpus_per_node_given}, set);
        break;
      case TraceFormat::kNsys:
        add_tables(read_nsys(file), options, instances, set);
        break;
      case TraceFormat::kShardwright:
        throw Error(
            fmt::format("{} is a trace of this program: it is read together with the plan "
                        "that it ran.",
                        file.string()));
      case TraceFormat::kUnknown:
        throw Error(fmt::format(
            "{} is of an unknown format, expected a trace of torch.profiler (.json or .json.gz), "
            "the output of nccl-tests, or the database of `nsys export --type sqlite`.",
            file.string()));
    }
  }
  note_missing_ranks(set);
  return set;
}

}  // namespace shardwright::profiles
