// SPDX-License-Identifier: Apache-2.0
#include "sim/program/stages.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::sim {
namespace {

constexpr std::size_t kMostPlaces = 1 << 16;

[[noreturn]] void fail_layout(std::string_view layout, const std::string& expected) {
  throw InvalidPlan(fmt::format("pp_layout is '{}', expected {}", layout, expected));
}

/// The layout without repetitions.
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  std::string expanded() {
    std::string result = sequence();
    if (at_ != text_.size()) fail();
    return result;
  }

 private:
  [[noreturn]] void fail() const {
    fail_layout(text_,
                "E, t, m, L and |, with (...)*n or x*n to repeat, as in \"Et*3|(tt|)*29m|L\"");
  }

  std::string sequence() {
    std::string result;
    while (at_ < text_.size() && text_[at_] != ')') {
      std::string item;
      if (text_[at_] == '(') {
        ++at_;
        item = sequence();
        if (at_ >= text_.size()) fail();
        ++at_;
      } else if (std::string_view("EtmL|").find(text_[at_]) != std::string_view::npos) {
        item = text_[at_++];
      } else {
        fail();
      }
      const std::int64_t times = repetitions();
      if (item.size() * static_cast<std::size_t>(times) + result.size() > kMostPlaces) fail();
      for (std::int64_t i = 0; i < times; ++i) result += item;
    }
    return result;
  }

  std::int64_t repetitions() {
    if (at_ >= text_.size() || text_[at_] != '*') return 1;
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    const auto times = parse_int64(text_.substr(begin, at_ - begin));
    if (!times || *times < 1 || *times > static_cast<std::int64_t>(kMostPlaces)) fail();
    return *times;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::vector<ChunkContent> from_layout(const Model& model, const Plan& plan, std::size_t parts) {
  const std::string& text = plan.parallel.pp_layout;
  const std::string places = LayoutReader(text).expanded();
  std::vector<ChunkContent> chunks(1);
  for (const char place : places) {
    ChunkContent& chunk = chunks.back();
    if (place == '|') chunks.emplace_back();
    if (place == 'E') chunk.embedding = true;
    if (place == 'L') chunk.head = true;
    if (place == 't') ++chunk.layers;
    if (place == 'm') ++chunk.extra_predictions;
  }
  if (chunks.size() != parts) {
    fail_layout(text,
                fmt::format("{} chunks, pp times virtual_stages, not {}", parts, chunks.size()));
  }
  std::int64_t layers = 0, predictions = 0;
  for (const ChunkContent& chunk : chunks) {
    layers += chunk.layers;
    predictions += chunk.extra_predictions;
    const bool is_end = &chunk == &chunks.front() || &chunk == &chunks.back();
    if (chunk.layers + chunk.extra_predictions == 0 && !is_end)
      fail_layout(text, "t or m in each chunk between the first and the last");
  }
  if (layers != model.layers) {
    fail_layout(text, fmt::format("the {} layers of the model, not {}", model.layers, layers));
  }
  if (predictions != model.mtp_layers) {
    fail_layout(text, fmt::format("m as often as the model predicts further tokens, {}, not {}",
                                  model.mtp_layers, predictions));
  }
  const bool once = std::count(places.begin(), places.end(), 'E') == 1 &&
                    std::count(places.begin(), places.end(), 'L') == 1;
  if (!once || !chunks.front().embedding || !chunks.back().head) {
    fail_layout(text, "one E, in the first chunk, and one L, in the last one");
  }
  return chunks;
}

std::vector<ChunkContent> equal_parts(const Model& model, std::size_t parts) {
  std::vector<ChunkContent> chunks(parts);
  const auto n = static_cast<std::int64_t>(parts);
  const bool divides = model.layers % n == 0;
  const std::int64_t most = (model.layers + n - 1) / n;
  const std::int64_t rest = model.layers - most * (n - 1);
  // Embedding and loss are places like a layer where that makes equal chunks; where layers would
  // fill all chunks but the last, extra predictions are, too: "Et|(tt|)*30mL" of DeepSeek-V3.
  const std::int64_t predictions = rest > 0 || (model.layers + 2) % n == 0 ? 0 : model.mtp_layers;
  const std::int64_t places = model.layers + 2 + predictions;
  const bool ends_count = !divides && places % n == 0 && places / n > predictions;
  const bool last_gets_rest = !divides && !ends_count && rest > 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t& layers = chunks[static_cast<std::size_t>(i)].layers;
    const bool is_last = i + 1 == n;
    if (ends_count) {
      layers = places / n - (i == 0 ? 1 : 0) - (is_last ? 1 + predictions : 0);
    } else if (last_gets_rest) {
      layers = is_last ? rest : most;
    } else {
      layers = model.layers / n + (i < model.layers % n ? 1 : 0);
    }
  }
  return chunks;
}

/// Equal numbers of modules, of which `ends` stand before the first layer and after the last one;
/// the first chunks get what is left. Nothing where a chunk would hold no layer.
std::vector<ChunkContent> equal_modules(const Model& model, std::size_t parts,
                                        const StageSoftware& ends) {
  const auto n = static_cast<std::int64_t>(parts);
  const std::int64_t places = ends.modules_before + model.layers + ends.modules_after;
  std::vector<ChunkContent> chunks(parts);
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t& layers = chunks[static_cast<std::size_t>(i)].layers;
    layers = places / n + (i < places % n ? 1 : 0) - (i == 0 ? ends.modules_before : 0) -
             (i + 1 == n ? ends.modules_after : 0);
    if (layers < 1) return {};
  }
  return chunks;
}

/// A stage takes blocks until they cost more than its share of all; a block costs its products'
/// weights, with as many heads for keys as for queries. Nothing where the head would take more than
/// the last stage.
std::vector<ChunkContent> by_cost(const Model& model, std::size_t parts) {
  const std::int64_t layer = (4 * model.hidden + 3 * model.ffn) * model.hidden;
  const std::int64_t all = model.layers * layer + model.vocab * model.hidden;
  const auto n = static_cast<std::int64_t>(parts);
  std::vector<ChunkContent> chunks(parts);
  std::int64_t at = 0, cost = 0;
  for (std::int64_t i = 0; i < model.layers; ++i) {
    ++chunks[static_cast<std::size_t>(at)].layers;
    cost += layer;
    if (cost * n > all * (at + 1) && at + 1 < n) ++at;
  }
  return at + 1 < n ? std::vector<ChunkContent>{} : chunks;
}

std::vector<ChunkContent> usual_parts(const Model& model, std::size_t parts, const Stack& stack) {
  const StageSoftware& stages = stack.parallel.stages;
  if (stages.modules_before > 0 || stages.modules_after > 0) {
    std::vector<ChunkContent> chunks = equal_modules(model, parts, stages);
    if (!chunks.empty()) return chunks;
  }
  if (stages.by_cost) {
    std::vector<ChunkContent> chunks = by_cost(model, parts);
    if (!chunks.empty()) return chunks;
  }
  return equal_parts(model, parts);
}

}  // namespace

void count_kinds(const Model& model, ChunkContent& chunk) {
  chunk.expert_layers = 0;
  chunk.kinds = 0;
  for (std::int64_t i = 0; i < chunk.layers; ++i) {
    chunk.expert_layers += model.has_experts(chunk.first_layer + i) ? 1 : 0;
    if (!model.kinds.empty())
      chunk.kinds = chunk.kinds * 1099511628211U + model.kind(chunk.first_layer + i).index() + 1;
  }
}

ChunkContent whole_model(const Model& model, const Plan& plan) {
  ChunkContent content;
  content.whole = true;
  content.layers = model.layers;
  content.recomputed = plan.ckpt_layers;
  count_kinds(model, content);
  content.extra_predictions = model.mtp_layers;
  content.embedding = content.head = true;
  return content;
}

bool alike(ChunkContent chunk, const ChunkContent& other) {
  chunk.first_layer = other.first_layer;
  return chunk == other;
}

Plan plan_of_chunk(const Plan& plan, const PipelineShape& shape) {
  Plan of_chunk = plan;
  of_chunk.grad_accum = shape.passes();
  return of_chunk;
}

std::int64_t telling_micro_batches(const Plan& plan) {
  const bool repeats = info_of(plan.parallel.schedule()).has_steady_state;
  return repeats ? std::min(plan.grad_accum, 4 * plan.parallel.pp) : plan.grad_accum;
}

PipelineShape pipeline_shape(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  PipelineShape shape;
  shape.kind = p.schedule();
  shape.stages = static_cast<std::int32_t>(p.pp);
  const std::int32_t own = shape.info().chunks;
  shape.chunks = own > 1 ? own : static_cast<std::int32_t>(p.virtual_stages);
  shape.micro_batches = static_cast<std::int32_t>(plan.grad_accum);
  if (p.pp == 1) {
    shape.kind = PipelineKind::kOneForwardOneBackward;
    shape.chunks = 1;
  }
  return shape;
}

std::vector<ChunkContent> partition_layers(const Model& model, const Plan& plan,
                                           const Stack& stack) {
  if (plan.parallel.pp == 1) return {whole_model(model, plan)};
  const auto parts = static_cast<std::size_t>(model_parts(pipeline_shape(plan)));
  std::vector<ChunkContent> chunks = plan.parallel.pp_layout.empty()
                                         ? usual_parts(model, parts, stack)
                                         : from_layout(model, plan, parts);
  if (plan.parallel.pp_layout.empty()) {
    chunks.front().embedding = chunks.back().head = true;
    chunks.back().extra_predictions = model.mtp_layers;
  }
  std::int64_t layers = 0;
  for (ChunkContent& chunk : chunks) {
    chunk.first_layer = layers;
    layers += chunk.layers;
    count_kinds(model, chunk);
    // Megatron counts checkpointed layers of each stage, so every chunk has its share.
    if (plan.recompute != Recompute::kNone) {
      chunk.recomputed = (plan.ckpt_layers * chunk.layers + model.layers - 1) / model.layers;
    }
  }
  return chunks;
}

std::vector<std::int64_t> stage_layers(const PipelineShape& shape,
                                       const std::vector<ChunkContent>& parts) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(shape.stages), 0);
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      layers[static_cast<std::size_t>(stage)] += of_chunk(parts, shape, {stage, c}).layers;
    }
  }
  return layers;
}

}  // namespace shardwright::sim
