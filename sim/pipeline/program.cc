// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/program.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/core/error.h"

namespace shardwright::sim {

namespace {

class Writer {
 public:
  explicit Writer(StageProgram& out) : out_(out) {}
  void forward(std::int32_t chunk, std::int32_t micro) { add(Direction::kForward, chunk, micro); }
  void backward(std::int32_t chunk, std::int32_t micro) { add(Direction::kBackward, chunk, micro); }
  void input(std::int32_t chunk, std::int32_t micro) {
    add(Direction::kInputGradient, chunk, micro);
  }
  void weight(std::int32_t chunk, std::int32_t micro) {
    add(Direction::kWeightGradient, chunk, micro);
  }
  void pair_last() { out_.back().paired = true; }

 private:
  void add(Direction direction, std::int32_t chunk, std::int32_t micro) {
    out_.push_back({direction, false, static_cast<std::int16_t>(chunk), micro});
  }
  StageProgram& out_;
};

void write_gpipe(const PipelineShape& shape, Writer& w) {
  for (std::int32_t i = 0; i < shape.micro_batches; ++i) w.forward(0, i);
  for (std::int32_t i = shape.micro_batches; i-- > 0;) w.backward(0, i);
}

void write_1f1b(const PipelineShape& shape, std::int32_t stage, Writer& w) {
  const std::int32_t m = shape.micro_batches;
  const std::int32_t warm_up = std::min(shape.stages - stage - 1, m);
  for (std::int32_t i = 0; i < warm_up; ++i) w.forward(0, i);
  for (std::int32_t i = warm_up; i < m; ++i) {
    w.forward(0, i);
    w.backward(0, i - warm_up);
  }
  for (std::int32_t i = m - warm_up; i < m; ++i) w.backward(0, i);
}

/// (chunk, micro-batch) of the k-th virtual micro-batch: groups of `group` micro-batches run chunk
/// after chunk, backward with the chunks reversed (get_schedule_table).
PipelineAction virtual_micro_batch(const PipelineShape& shape, std::int32_t k, bool forward) {
  const std::int32_t group = shape.group > 0 ? shape.group : shape.stages;
  const std::int32_t round = k / (group * shape.chunks);
  const std::int32_t first = round * group;
  const std::int32_t size = std::min(group, shape.micro_batches - first);
  const std::int32_t inside = k - round * group * shape.chunks;
  const std::int32_t chunk = inside / size;
  return {forward ? Direction::kForward : Direction::kBackward, false,
          static_cast<std::int16_t>(forward ? chunk : shape.chunks - 1 - chunk),
          first + inside % size};
}

void write_interleaved(const PipelineShape& shape, std::int32_t stage, StageProgram& out) {
  const std::int32_t group = shape.group > 0 ? shape.group : shape.stages;
  const std::int32_t total = shape.micro_batches * shape.chunks;
  const std::int32_t warm_up =
      std::min(2 * (shape.stages - stage - 1) + (shape.chunks - 1) * group, total);
  for (std::int32_t k = 0; k < warm_up; ++k) out.push_back(virtual_micro_batch(shape, k, true));
  for (std::int32_t k = warm_up; k < total; ++k) {
    out.push_back(virtual_micro_batch(shape, k, true));
    out.push_back(virtual_micro_batch(shape, k - warm_up, false));
  }
  for (std::int32_t k = total - warm_up; k < total; ++k) {
    out.push_back(virtual_micro_batch(shape, k, false));
  }
}

/// ZB-H1: as 1F1B, but stage i computes weight gradients i micro-batches late, which fills the
/// bubbles of the drain and keeps as many activations as 1F1B does on its first stage.
void write_zb1p(const PipelineShape& shape, std::int32_t stage, Writer& w) {
  const std::int32_t m = shape.micro_batches;
  std::int32_t forwards = std::min(shape.stages - stage, m);
  for (std::int32_t i = 0; i < forwards; ++i) w.forward(0, i);
  std::int32_t weights = 0;
  for (std::int32_t i = 0; i < m; ++i) {
    w.input(0, i);
    if (i >= stage) w.weight(0, weights++);
    if (forwards < m) w.forward(0, forwards++);
  }
  while (weights < m) w.weight(0, weights++);
}

void write_zbv(const PipelineShape& shape, std::int32_t stage, StageProgram& out) {
  const std::int32_t p = shape.stages;
  // The schedule is made for at least 2p - 1 micro-batches; those beyond m are left out.
  const std::int32_t m = std::max(2 * p - 1, shape.micro_batches);
  StageProgram all;
  Writer w(all);
  std::int32_t forward0 = 0, forward1 = 0, backward0 = 0, backward1 = 0;
  for (std::int32_t i = 0; i < 2 * (p - stage) - 1; ++i) w.forward(0, forward0++);
  for (std::int32_t i = 0; i < stage; ++i) {
    w.forward(1, forward1++);
    w.forward(0, forward0++);
  }
  for (std::int32_t i = 0; i < p - stage; ++i) {
    w.forward(1, forward1++);
    w.input(1, backward1);
    w.weight(1, backward1++);
  }
  while (forward1 < forward0 || forward0 < m) {
    if (forward0 < m) w.forward(0, forward0++);
    w.input(0, backward0);
    w.weight(0, backward0++);
    w.forward(1, forward1++);
    w.input(1, backward1);
    w.weight(1, backward1++);
  }
  std::int32_t weight0 = backward0, weight1 = backward1;
  for (std::int32_t i = 0; i < stage; ++i) {
    w.input(0, backward0++);
    w.input(1, backward1++);
  }
  for (std::int32_t i = 0; i < p - stage; ++i) {
    w.input(0, backward0++);
    w.weight(0, weight0++);
  }
  while (weight1 < backward1) w.weight(1, weight1++);
  while (weight0 < backward0) w.weight(0, weight0++);
  std::copy_if(all.begin(), all.end(), std::back_inserter(out), [&](const PipelineAction& action) {
    return action.micro_batch < shape.micro_batches;
  });
}

/// The steps of dualpipe.py. Micro-batches of chunk 0 enter at stage 0, those of chunk 1 at the
/// last stage; a stage of the second half sees them the other way round.
class DualpipeWriter {
 public:
  DualpipeWriter(const PipelineShape& shape, std::int32_t stage, StageProgram& out)
      : w_(out),
        half_(shape.stages / 2),
        each_way_(shape.micro_batches / 2),
        stages_(shape.stages),
        second_half_(stage >= half_),
        half_rank_(std::min(stage, shape.stages - 1 - stage)) {}

  void write() {
    const std::int32_t outer = half_ - half_rank_ - 1;  // how far from the middle
    const bool middle = outer == 0;
    for (std::int32_t i = 0; i < 2 * outer; ++i) forward(0);
    for (std::int32_t i = 0; i <= half_rank_; ++i) {
      forward(0);
      forward(1);
    }
    for (std::int32_t i = 0; i < outer; ++i) {
      backward(1, true);
      weight();
      forward(1);
    }
    const std::int32_t main = each_way_ - stages_ + half_rank_ + 1;
    for (std::int32_t i = 0; i < main; ++i) {
      forward_backward(0, 1, !(middle && i == 0));
      forward_backward(1, 0, true);
    }
    for (std::int32_t i = 0; i < outer; ++i) {
      backward(1, false);
      forward_backward(1, 0, true);
    }
    bool delays = false;
    for (std::int32_t i = 0; i <= half_rank_; ++i) {
      const bool turn = i == (half_rank_ + 1) / 2;
      if (turn && half_rank_ % 2 == 1) delays = true;
      backward(1, delays);
      if (turn && half_rank_ % 2 == 0) delays = true;
      backward(0, delays);
    }
    for (std::int32_t i = 0; i < outer; ++i) {
      weight();
      backward(0, true);
    }
    while (next_weight_ < delayed_.size()) weight();
  }

 private:
  std::int32_t chunk_of(std::int32_t phase) const { return phase ^ (second_half_ ? 1 : 0); }
  void forward(std::int32_t phase) { w_.forward(chunk_of(phase), forwards_[phase]++); }
  void backward(std::int32_t phase, bool delays_weights) {
    const std::int32_t micro = backwards_[phase]++;
    if (!delays_weights) return w_.backward(chunk_of(phase), micro);
    w_.input(chunk_of(phase), micro);
    delayed_.push_back(
        {Direction::kWeightGradient, false, static_cast<std::int16_t>(chunk_of(phase)), micro});
  }
  void weight() {
    const PipelineAction& action = delayed_[next_weight_++];
    w_.weight(action.chunk, action.micro_batch);
  }
  void forward_backward(std::int32_t forward_phase, std::int32_t backward_phase, bool paired) {
    forward(forward_phase);
    if (paired) w_.pair_last();
    backward(backward_phase, false);
  }

  Writer w_;
  std::int32_t half_, each_way_, stages_;
  bool second_half_;
  std::int32_t half_rank_;
  std::int32_t forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  StageProgram delayed_;
  std::size_t next_weight_ = 0;
};

}  // namespace

void check_shape(const PipelineShape& shape) {
  const auto refuse = [&](const char* key, std::int32_t value, const std::string& expected) {
    throw Error(fmt::format("{} is {}, but the pipeline schedule {} with {} stages expects {}", key,
                            value, name_of(shape.kind), shape.stages, expected));
  };
  if (shape.stages < 1) refuse("pp", shape.stages, "at least 1");
  if (shape.micro_batches < 1) refuse("grad_accum", shape.micro_batches, "at least 1");
  const bool two_chunks = shape.kind == PipelineKind::kZbv || shape.kind == PipelineKind::kDualpipe;
  if (two_chunks && shape.chunks != 2) refuse("virtual_stages", shape.chunks, "2");
  if (shape.kind == PipelineKind::kInterleaved) {
    if (shape.chunks < 2) refuse("virtual_stages", shape.chunks, "at least 2");
    const std::int32_t group = shape.group > 0 ? shape.group : shape.stages;
    if (group < shape.stages) refuse("group", group, fmt::format("at least {}", shape.stages));
    const std::int32_t last = shape.micro_batches % group;
    if (shape.micro_batches < shape.stages || (last > 0 && last < shape.stages)) {
      refuse("grad_accum", shape.micro_batches,
             fmt::format("a multiple of {}, or a remainder of at least {}", group, shape.stages));
    }
  } else if (!two_chunks && shape.chunks != 1) {
    refuse("virtual_stages", shape.chunks, "1");
  }
  if (shape.kind == PipelineKind::kDualpipe) {
    if (shape.stages % 2 != 0) refuse("pp", shape.stages, "an even number of stages");
    if (shape.micro_batches % 2 != 0 || shape.micro_batches < 2 * shape.stages) {
      refuse("grad_accum", shape.micro_batches,
             fmt::format("an even number of at least {}", 2 * shape.stages));
    }
  }
}

StageProgram stage_program(const PipelineShape& shape, std::int32_t stage) {
  StageProgram out;
  out.reserve(static_cast<std::size_t>(3 * shape.chunks) *
              static_cast<std::size_t>(shape.micro_batches));
  Writer w(out);
  switch (shape.kind) {
    case PipelineKind::kGpipe:
      write_gpipe(shape, w);
      break;
    case PipelineKind::kOneForwardOneBackward:
      write_1f1b(shape, stage, w);
      break;
    case PipelineKind::kInterleaved:
      write_interleaved(shape, stage, out);
      break;
    case PipelineKind::kZb1p:
      write_zb1p(shape, stage, w);
      break;
    case PipelineKind::kZbv:
      write_zbv(shape, stage, out);
      break;
    case PipelineKind::kDualpipe:
      DualpipeWriter(shape, stage, out).write();
      break;
  }
  return out;
}

std::optional<ChunkPlace> previous_chunk(const PipelineShape& shape, ChunkPlace at) {
  const std::int32_t last = shape.stages - 1;
  const bool reversed =
      at.chunk == 1 && (shape.kind == PipelineKind::kZbv || shape.kind == PipelineKind::kDualpipe);
  if (reversed) {
    if (at.stage < last) return ChunkPlace{at.stage + 1, 1};
    if (shape.kind == PipelineKind::kZbv) return ChunkPlace{last, 0};
    return std::nullopt;
  }
  if (at.stage > 0) return ChunkPlace{at.stage - 1, at.chunk};
  if (at.chunk > 0) return ChunkPlace{last, at.chunk - 1};
  return std::nullopt;
}

std::optional<ChunkPlace> next_chunk(const PipelineShape& shape, ChunkPlace at) {
  const std::int32_t last = shape.stages - 1;
  const bool v_shape = shape.kind == PipelineKind::kZbv;
  if (at.chunk == 1 && (v_shape || shape.kind == PipelineKind::kDualpipe)) {
    if (at.stage == 0) return std::nullopt;
    return ChunkPlace{at.stage - 1, 1};
  }
  if (at.stage < last) return ChunkPlace{at.stage + 1, at.chunk};
  if (v_shape) return ChunkPlace{last, 1};
  if (shape.kind != PipelineKind::kDualpipe && at.chunk + 1 < shape.chunks) {
    return ChunkPlace{0, at.chunk + 1};
  }
  return std::nullopt;
}

std::int32_t model_part(const PipelineShape& shape, ChunkPlace at) {
  const bool reversed = at.chunk == 1;
  switch (shape.kind) {
    case PipelineKind::kZbv:
      return reversed ? 2 * shape.stages - 1 - at.stage : at.stage;
    case PipelineKind::kDualpipe:
      return reversed ? shape.stages - 1 - at.stage : at.stage;
    default:
      return at.chunk * shape.stages + at.stage;
  }
}

std::int32_t model_parts(const PipelineShape& shape) {
  return shape.kind == PipelineKind::kDualpipe ? shape.stages : shape.stages * shape.chunks;
}

std::int32_t peak_in_flight(const StageProgram& program) {
  std::int32_t held = 0, peak = 0;
  for (const PipelineAction& action : program) {
    if (action.direction == Direction::kForward) peak = std::max(peak, ++held);
    if (action.direction == Direction::kBackward || action.direction == Direction::kWeightGradient)
      --held;
  }
  return peak;
}

}  // namespace shardwright::sim
