// SPDX-License-Identifier: Apache-2.0
#include "sim/core/pipeline.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/core/base/error.h"

namespace shardwright {

std::string pipeline_schedules_with(bool (*has)(const PipelineInfo&)) {
  std::vector<std::string_view> names;
  for (const PipelineInfo& info : kPipelineInfos) {
    if (has(info)) names.push_back(info.name);
  }
  if (names.size() < 2) return std::string(names.empty() ? "" : names.front());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

namespace {

[[noreturn]] void refuse(const PipelineShape& shape, std::string_view key, std::int32_t value,
                         std::string_view expected) {
  throw InvalidPlan(fmt::format("{} is {}, but the pipeline schedule {} with {} stages expects {}",
                                key, value, shape.info().name, shape.stages, expected));
}

std::string multiple(std::int32_t of) {
  return of == 2 ? "an even number" : fmt::format("a multiple of {}", of);
}

void check_chunks(const PipelineShape& shape) {
  const PipelineInfo& info = shape.info();
  if (info.takes_virtual_stages()) {
    if (shape.chunks < 2) refuse(shape, "virtual_stages", shape.chunks, "at least 2");
  } else if (shape.chunks != info.chunks) {
    refuse(shape, "virtual_stages", shape.chunks, fmt::format("{}", info.chunks));
  }
}

void check_groups(const PipelineShape& shape) {
  const std::int32_t group = shape.group_size();
  if (group < shape.stages) refuse(shape, "group", group, fmt::format("at least {}", shape.stages));
  const std::int32_t last = shape.micro_batches % group;
  if (shape.micro_batches < shape.stages || (last > 0 && last < shape.stages)) {
    refuse(shape, "grad_accum", shape.micro_batches,
           fmt::format("a multiple of {}, or a remainder of at least {}", group, shape.stages));
  }
}

void check_multiples(const PipelineShape& shape) {
  const PipelineInfo& info = shape.info();
  if (shape.stages % info.stage_multiple != 0) {
    refuse(shape, "pp", shape.stages, multiple(info.stage_multiple) + " of stages");
  }
  const std::int32_t least = info.micro_batches_per_stage * shape.stages;
  if (shape.micro_batches % info.micro_batch_multiple != 0 || shape.micro_batches < least) {
    refuse(shape, "grad_accum", shape.micro_batches,
           fmt::format("{} of at least {}", multiple(info.micro_batch_multiple), least));
  }
}

/// The chunk leads from the last stage to the first one.
bool goes_back(const PipelineShape& shape, ChunkPlace at) {
  return at.chunk == 1 && shape.info().order != ChunkOrder::kLoop;
}

}  // namespace

void check_shape(const PipelineShape& shape) {
  if (shape.stages < 1) refuse(shape, "pp", shape.stages, "at least 1");
  if (shape.micro_batches < 1) refuse(shape, "grad_accum", shape.micro_batches, "at least 1");
  check_chunks(shape);
  if (shape.info().groups_micro_batches) check_groups(shape);
  check_multiples(shape);
}

std::optional<ChunkPlace> previous_chunk(const PipelineShape& shape, ChunkPlace at) {
  const std::int32_t last = shape.stages - 1;
  if (goes_back(shape, at)) {
    if (at.stage < last) return ChunkPlace{at.stage + 1, 1};
    if (shape.info().order == ChunkOrder::kV) return ChunkPlace{last, 0};
    return std::nullopt;
  }
  if (at.stage > 0) return ChunkPlace{at.stage - 1, at.chunk};
  if (at.chunk > 0) return ChunkPlace{last, at.chunk - 1};
  return std::nullopt;
}

std::optional<ChunkPlace> next_chunk(const PipelineShape& shape, ChunkPlace at) {
  const std::int32_t last = shape.stages - 1;
  if (goes_back(shape, at)) {
    if (at.stage == 0) return std::nullopt;
    return ChunkPlace{at.stage - 1, 1};
  }
  if (at.stage < last) return ChunkPlace{at.stage + 1, at.chunk};
  switch (shape.info().order) {
    case ChunkOrder::kV:
      return ChunkPlace{last, 1};
    case ChunkOrder::kBothWays:
      return std::nullopt;
    case ChunkOrder::kLoop:
      break;
  }
  if (at.chunk + 1 < shape.chunks) return ChunkPlace{0, at.chunk + 1};
  return std::nullopt;
}

std::int32_t model_part(const PipelineShape& shape, ChunkPlace at) {
  if (goes_back(shape, at)) return model_parts(shape) - 1 - at.stage;
  return at.chunk * shape.stages + at.stage;
}

std::int32_t model_parts(const PipelineShape& shape) {
  return shape.info().order == ChunkOrder::kBothWays ? shape.stages : shape.stages * shape.chunks;
}

}  // namespace shardwright
