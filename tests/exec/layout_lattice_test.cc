// SPDX-License-Identifier: Apache-2.0
// The lattice of layouts: tensor-parallel ranks x stages x their chunks x data-parallel ranks, up
// to 16 ranks, with every pipeline schedule, strategy and recomputation, and what else a plan can
// say drawn for each, sizes that divide nothing included. Every one that is accepted trains to the
// bits of one rank with the same leaves of sums. Where ranks share key/value heads or their number
// is no power of two it trains to the bits of tensor ranks alone, and near those of one rank.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "sim/core/base/parse_number.h"
#include "tests/exec/training.h"

namespace shardwright::exec {
namespace {

using namespace testing;

constexpr std::int64_t kTriedLayouts = 60;  // SHARDWRIGHT_LAYOUTS tries others
constexpr std::int64_t kMostRanks = 16;

struct Shape {
  std::int64_t tp = 1, pp = 1, virtual_stages = 1, dp = 1;
  std::optional<PipelineKind> kind;  // where there are stages
};

std::vector<Shape> shapes() {
  using enum PipelineKind;
  std::vector<Shape> shapes;
  for (const std::int64_t tp : {1, 2, 3, 4, 5, 6, 8}) {
    for (const std::int64_t pp : {1, 2, 3, 4, 8, 16}) {
      for (const std::int64_t dp : {1, 2, 3, 4, 8, 16}) {
        if (tp * pp * dp > kMostRanks) continue;
        if (pp == 1) {
          shapes.push_back({tp, pp, 1, dp, {}});
          continue;
        }
        for (const PipelineKind kind : {kGpipe, kOneForwardOneBackward, kZb1p}) {
          shapes.push_back({tp, pp, 1, dp, kind});
        }
        shapes.push_back({tp, pp, 2, dp, kZbv});
        for (const std::int64_t chunks : {2, 3}) {
          if (pp * chunks <= kMostRanks) shapes.push_back({tp, pp, chunks, dp, kInterleaved});
        }
      }
    }
  }
  return shapes;
}

class Drawing {
 public:
  explicit Drawing(std::uint64_t index) : random_{index, kernels::RandomSite::kSynthetic, 0} {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_.below(draws_++, static_cast<std::uint64_t>(n)));
  }
  template <class T>
  T pick(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(below(std::ssize(choices)))];
  }

 private:
  kernels::RandomStream random_;
  std::uint64_t draws_ = 0;
};

Model drawn_model(const Shape& shape, Drawing& draw) {
  Model model =
      divisible(draw.pick(std::vector{tiny_llama(), tiny_qwen2(), tiny_qwen3(), tiny_gpt2(),
                                      tiny_mpt(), tiny_gpt_neox(), tiny_gemma(), tiny_gemma2()}));
  const bool groups = !model.fused_qkv;
  model.heads = shape.tp * (1 + draw.below(std::max<std::int64_t>(1, 8 / shape.tp)));
  model.kv_heads = groups ? 1 + draw.below(model.heads) : model.heads;
  const auto is_divided = [](std::int64_t a, std::int64_t b) { return a % b == 0 || b % a == 0; };
  while (model.heads % model.kv_heads != 0 || !is_divided(model.kv_heads, shape.tp))
    --model.kv_heads;
  model.hidden = 32 + 4 * draw.below(6);
  model.ffn = shape.tp * (3 + draw.below(12));
  model.head_dim = 8;
  model.vocab = 60 + draw.below(60);
  model.layers = std::max<std::int64_t>(2, shape.pp * shape.virtual_stages) + draw.below(3);
  return model;
}

/// Whether one rank with as many leaves adds up as the plan's tensor ranks do.
bool is_one_rank(const Training& training) {
  const std::int64_t tp = training.plan.parallel.tp;
  return (tp & (tp - 1)) == 0 && training.model.kv_heads % tp == 0;
}

/// Micro-batches of a step on a rank. Where a rank adds up its own before others', only one of each
/// keeps the order of one rank.
std::int64_t drawn_micro_batches(const Shape& shape, bool whole_sums, Drawing& draw) {
  std::int64_t least = 1;
  if (shape.kind) least = info_of(*shape.kind).micro_batches_per_stage * shape.pp;
  if (shape.kind == PipelineKind::kInterleaved) return shape.pp * (1 + draw.below(2));
  least = std::max<std::int64_t>(least, 1);
  if (whole_sums && shape.dp > 1 && draw.below(2) == 0) return least;
  return least + draw.below(4);
}

/// Of the lattice's corners the i-th: neighbours differ in everything.
Training drawn_layout(std::uint64_t index) {
  static const std::vector<Shape> kShapes = shapes();
  constexpr Strategy kStrategies[] = {
      Strategy::kDdp,   Strategy::kZero1,       Strategy::kZero2,      Strategy::kZero3,
      Strategy::kFsdp1, Strategy::kFsdp2,       Strategy::kYafsdp,     Strategy::kFsdp2NoReshard,
      Strategy::kHsdp,  Strategy::kFsdp1GradOp, Strategy::kYafsdpZero2};
  const Shape& shape = kShapes[(index * 37) % kShapes.size()];
  Strategy strategy = kStrategies[index % std::size(kStrategies)];
  Drawing draw(index);
  Training training;
  training.model = drawn_model(shape, draw);
  const bool whole_sums =
      shape.pp > 1 || strategy == Strategy::kDdp || strategy == Strategy::kZero1;
  training.plan = tiny_plan(strategy, shape.tp * shape.pp * shape.dp,
                            drawn_micro_batches(shape, whole_sums, draw));
  Plan& plan = training.plan;
  plan.seq_len = 7 + draw.below(14);
  if (strategy == Strategy::kHsdp) {
    // Stages add shards and then replicas, and that is the order of one rank where there is but one
    // of them.
    const std::int64_t half = std::max<std::int64_t>(1, shape.dp / 2);
    plan.shard_group = shape.pp == 1 ? half : draw.below(2) == 0 ? shape.dp : 1;
  }
  plan.parallel.tp = shape.tp;
  plan.parallel.pp = shape.pp;
  plan.parallel.virtual_stages = shape.virtual_stages;
  plan.parallel.pp_schedule = shape.kind;
  if (shape.tp > 1) plan.parallel.sp = draw.below(3) > 0;
  if (plan.parallel.sp.value_or(false)) plan.seq_len = round_up(plan.seq_len, shape.tp);
  if (4 % shape.tp == 0 && draw.below(3) == 0) {
    plan.sum_features = 4;
    for (std::int64_t* const size : {&training.model.heads, &training.model.kv_heads,
                                     &training.model.ffn, &training.model.vocab}) {
      *size = round_up(*size, 4);
    }
    training.model.kv_heads = training.model.heads;
    if (plan.parallel.sp.value_or(false)) plan.seq_len = round_up(plan.seq_len, 4);
  }
  set_recompute(plan, draw.pick(std::vector<std::string>{"none", "none", "full", "selective-op",
                                                         "norm", "ffn", "attention", "block"}));
  if (plan.recompute != Recompute::kNone) plan.ckpt_layers = 1 + draw.below(training.model.layers);
  if (draw.below(2) == 0) plan.param_dtype = DType::kBf16;
  plan.micro_batch = 1 + draw.below(3);
  plan.buffers = 1 + static_cast<int>(draw.below(3));
  plan.prefetch = static_cast<int>(draw.below(3));
  training.mode =
      draw.pick(std::vector{StreamMode::kInline, StreamMode::kThreads, StreamMode::kShuffled});
  training.shuffle_seed = index;
  training.options.poison = draw.below(2) == 0;
  training.ignores_targets = draw.below(2) == 0;
  training.packs_documents = draw.below(2) == 0;
  training.loss_chunk_tokens = static_cast<double>(5 + draw.below(60));
  training.steps = 2;
  return training;
}

/// One rank that accumulates all micro-batches of a step, or `tp` that have whole tokens; replicas
/// of them, where each adds up several micro-batches of its own first.
std::vector<TrainedStep> without_layout(Training training, std::int64_t tp) {
  Plan& plan = training.plan;
  const std::int64_t dp = RankMesh(plan, 1).dp;
  const bool whole_sums =
      plan.parallel.pp > 1 || plan.strategy == Strategy::kDdp || plan.strategy == Strategy::kZero1;
  const bool replicates = whole_sums && plan.grad_accum > 1;
  plan.sum_features = tp > 1 ? 0 : is_one_rank(training) ? plan.feature_parts() : 1;
  plan.sum_uses = plan.use_parts();
  plan.parallel = {};
  plan.parallel.tp = tp;
  if (tp > 1) plan.parallel.sp = false;
  plan.shard_group = 0;
  plan.gpus = tp * (replicates ? dp : 1);
  if (!replicates) plan.grad_accum *= dp;
  plan.strategy = plan.gpus > 1 ? Strategy::kDdp : Strategy::kSingle;
  set_recompute(plan, "none");
  plan.ckpt_layers = 0;
  training.mode = StreamMode::kInline;
  training.options = {};
  return train(training);
}

std::string told(const Training& training) {
  const Plan& plan = training.plan;
  const Parallelism& p = plan.parallel;
  return fmt::format(
      "tp {} sp {} pp {} v {} of {} ranks, {}, {} of {} layers, {}/{} heads, {} tokens of {}, {} x "
      "{} of {}, {}, {}, recompute {} of {}, {} leaves, streams {}{}",
      p.tp, p.sequence_parallel(), p.pp, p.virtual_stages, plan.gpus,
      p.pp > 1 ? info_of(p.schedule()).name : "no stages", training.model.name,
      training.model.layers, training.model.heads, training.model.kv_heads, plan.seq_len,
      training.model.vocab, plan.grad_accum, plan.micro_batch, plan.seq_len, name_of(plan.strategy),
      name_of(plan.param_dtype), recompute_name(plan), plan.ckpt_layers, plan.feature_parts(),
      name_of(training.mode), training.options.poison ? ", poisoned" : "");
}

std::int64_t asked_layouts() {
  const char* asked = std::getenv("SHARDWRIGHT_LAYOUTS");
  return asked == nullptr ? kTriedLayouts : parse_int64(asked).value();
}

TEST(LayoutLattice, EveryLayoutTrainsAsOneRank) {
  for (std::int64_t index = 0; index < asked_layouts(); ++index) {
    const Training training = drawn_layout(static_cast<std::uint64_t>(index));
    SCOPED_TRACE(fmt::format("layout {}: {}", index, told(training)));
    const bool is_one = is_one_rank(training);
    const std::vector<TrainedStep> expected =
        without_layout(training, is_one ? 1 : training.plan.parallel.tp);
    ASSERT_GT(expected.back().result.gradient_norm, 0);
    const std::vector<TrainedStep> trained = train(training);
    expect_same_training(expected, trained);
    if (!is_one) {
      const StepResult near = without_layout(training, 1).front().result;
      const double error = training.plan.param_dtype == DType::kBf16 ? 5e-2 : 1e-4;
      EXPECT_NEAR(trained.front().result.gradient_norm / near.gradient_norm, 1, error);
      EXPECT_NEAR(trained.front().result.loss() / near.loss(), 1, error / 10);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace shardwright::exec
