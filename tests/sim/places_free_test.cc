// SPDX-License-Identifier: Apache-2.0
// No operation of a step touches a place in memory that another one has not left, in any plan that
// the executor runs; and what the walk says of schedules that do.
#include "sim/pipeline/places_free.h"

#include <cstdlib>

#include "sim/core/base/parse_number.h"
#include "sim/core/executed_plan.h"
#include "sim/core/memory_actions.h"
#include "sim/core/plan_knobs.h"
#include "tests/sim/prediction.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

using namespace shardwright::testing;

constexpr std::int64_t kTriedPlans = 300;  // SHARDWRIGHT_LAYOUTS tries others

const Stack& native() {
  static const Stack stack = profiles::load_stack("native").stack;
  return stack;
}

class Drawing {
 public:
  explicit Drawing(std::int64_t index) : random_(static_cast<std::uint64_t>(index)) {}
  std::int64_t from(std::int64_t first, std::int64_t last) {
    return first +
           static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(last - first + 1));
  }
  template <class T>
  T of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(from(0, std::ssize(choices) - 1))];
  }

 private:
  std::mt19937_64 random_;
};

Model drawn_model(std::int64_t tp, Drawing& draw) {
  if (draw.from(0, 3) == 0) {
    return shipped(draw.of<std::string>({"starcoder2-3b", "gemma-2b", "gemma-2-2b", "llama-3-8b",
                                         "qwen2.5-1.5b", "qwen3-4b", "gpt2", "pythia-160m",
                                         "mpt-7b", "glm-4-9b", "phi-3-mini"}));
  }
  Model model = draw.of<Model>({tiny_llama(), tiny_qwen2(), tiny_qwen3(), tiny_gpt2(), tiny_mpt(),
                                tiny_gpt_neox(), tiny_gemma(), tiny_gemma2(), uneven_llama()});
  model.heads = tp * draw.from(1, 4);
  model.kv_heads = model.fused_qkv ? model.heads : draw.from(1, model.heads);
  while (model.heads % model.kv_heads != 0 ||
         (model.kv_heads % tp != 0 && tp % model.kv_heads != 0)) {
    --model.kv_heads;
  }
  model.head_dim = 8 * draw.from(1, 4);
  model.hidden = 8 * draw.from(2, 24);
  model.ffn = tp * draw.from(3, 30);
  model.vocab = draw.from(30, 400);
  return model;
}

Plan drawn_plan(std::int64_t tp, Model& model, Drawing& draw) {
  const std::int64_t pp = draw.of<std::int64_t>({1, 1, 2, 2, 3, 4, 8});
  const std::int64_t dp = draw.of<std::int64_t>({1, 2, 2, 3, 4});
  const Strategy strategy = draw.of(std::vector<Strategy>{
      Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp1,
      Strategy::kFsdp1GradOp, Strategy::kFsdp2, Strategy::kFsdp2NoReshard, Strategy::kHsdp,
      Strategy::kYafsdp, Strategy::kYafsdpZero2});
  Plan plan = tiny_plan(strategy, tp * pp * dp, draw.from(1, 4));
  plan.seq_len = draw.of<std::int64_t>({7, 16, 33, 48, 64});
  plan.micro_batch = draw.from(1, 3);
  plan.parallel.tp = tp;
  plan.parallel.pp = pp;
  if (tp > 1) plan.parallel.sp = draw.from(0, 2) > 0;
  if (plan.parallel.sequence_parallel()) plan.seq_len = round_up(plan.seq_len, tp);
  if (pp > 1) {
    using enum PipelineKind;
    const PipelineKind kind =
        draw.of(std::vector{kGpipe, kOneForwardOneBackward, kInterleaved, kZb1p, kZb1p, kZbv});
    plan.parallel.pp_schedule = kind;
    if (kind == kZbv) plan.parallel.virtual_stages = 2;
    if (kind == kInterleaved) plan.parallel.virtual_stages = draw.from(2, 3);
    plan.grad_accum = pp * draw.from(1, 2);
    if (kind == kGpipe || kind == kOneForwardOneBackward) plan.grad_accum += draw.from(0, 2);
  }
  const std::int64_t parts = pp * plan.parallel.virtual_stages;
  if (model.layers < 10 || model.layers < parts)
    model.layers = std::max<std::int64_t>(2, parts) + draw.from(0, 3);
  if (strategy == Strategy::kHsdp && dp > 1) plan.shard_group = draw.of<std::int64_t>({1, dp});
  set_recompute(plan, draw.of<std::string>({"none", "none", "full", "selective-op", "norm", "ffn",
                                            "attention", "block", "swiglu", "norm,swiglu"}));
  if (plan.recompute != Recompute::kNone) plan.ckpt_layers = draw.from(1, model.layers);
  if (draw.from(0, 1) == 0) plan.param_dtype = DType::kBf16;
  if (draw.from(0, 3) == 0) plan.reduce_dtype = DType::kBf16;
  plan.buffers = static_cast<int>(draw.from(1, 3));
  plan.prefetch = static_cast<int>(draw.from(0, plan.buffers - 1));
  return plan;
}

std::string told(const Model& model, const Plan& plan) {
  const Parallelism& p = plan.parallel;
  return fmt::format(
      "{} of {} layers, {}/{} heads, tp {} sp {} pp {} {} v {} of {} ranks, {}, {} micro-batches, "
      "recompute {} of {}, {} {}, buffers {} prefetch {}",
      model.name, model.layers, model.heads, model.kv_heads, p.tp, p.sequence_parallel(), p.pp,
      p.pp > 1 ? info_of(p.schedule()).name : "", p.virtual_stages, plan.gpus,
      name_of(plan.strategy), plan.grad_accum, recompute_name(plan), plan.ckpt_layers,
      name_of(plan.param_dtype), name_of(plan.reduce_dtype), plan.buffers, plan.prefetch);
}

std::int64_t asked_plans() {
  const char* asked = std::getenv("SHARDWRIGHT_LAYOUTS");
  return asked == nullptr ? kTriedPlans : parse_int64(asked).value();
}

struct Drawn {
  std::int64_t index = 0;
  Model model;
  Plan plan;
  std::vector<Schedule> stages;
};

/// Calls visit(drawn) for each that the executor runs.
template <class Visit>
std::int64_t for_each_plan(std::int64_t plans, const Visit& visit) {
  std::int64_t visited = 0;
  for (std::int64_t index = 0; index < plans; ++index) {
    Drawing draw(index);
    Drawn drawn;
    drawn.index = index;
    const std::int64_t tp = draw.of<std::int64_t>({1, 2, 2, 3, 4, 4, 5, 6, 8});
    drawn.model = drawn_model(tp, draw);
    drawn.plan = drawn_plan(tp, drawn.model, draw);
    try {
      check_plan(drawn.plan, drawn.model, drawn.plan.gpus);
      check_run(drawn.plan, drawn.model);
      drawn.stages = executed_step(drawn.model, drawn.plan, native(), 2).stages;
    } catch (const Error&) {
      continue;
    }
    ++visited;
    visit(drawn);
  }
  return visited;
}

std::string first_taken(const std::vector<Schedule>& stages) {
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    if (auto taken = find_taken_place(stages[stage], static_cast<std::int32_t>(stage)))
      return fmt::format("stage {}: {}", stage, *taken);
  }
  return "";
}

TEST(PlacesFree, InEveryPlanThatTheExecutorRuns) {
  const std::int64_t walked = for_each_plan(asked_plans(), [](const Drawn& drawn) {
    if (::testing::Test::HasFailure()) return;
    EXPECT_EQ(first_taken(drawn.stages), "")
        << "plan " << drawn.index << ": " << told(drawn.model, drawn.plan);
  });
  EXPECT_GT(walked, asked_plans() * 3 / 4);
}

/// How many plans with tensor ranks `break_it` changes, in how many of these the walk finds a place
/// that is taken, and what it says of the first.
struct Refused {
  std::int64_t plans = 0, refused = 0;
  std::string first;
};
template <class Break>
Refused refused_once(const Break& break_it) {
  Refused all;
  for_each_plan(kTriedPlans, [&](Drawn& drawn) {
    if (drawn.plan.parallel.tp == 1) return;
    bool changed = false;
    for (Schedule& stage : drawn.stages) changed = break_it(stage) || changed;
    if (!changed) return;
    ++all.plans;
    const std::string taken = first_taken(drawn.stages);
    if (taken.empty()) return;
    if (all.refused++ == 0) all.first = taken;
  });
  return all;
}

TEST(PlacesFree, NotWhereTheyGoWhenTheLastUseIsIssued) {
  const Refused refused = refused_once([](Schedule& schedule) {
    bool changed = false;
    for (const Block& block : schedule.blocks) {
      const auto first = schedule.memory.begin() + block.first_action;
      for (auto action = first; action != first + block.action_count; ++action) {
        if (action->acquire || action->tensor == Tensor::kTemporary) continue;
        std::uint32_t last = action->op;
        while (last > 0 && !touches(schedule.ops[block.first_op + last], *action)) --last;
        if (last == action->op || !touches(schedule.ops[block.first_op + last], *action)) continue;
        action->op = last;
        changed = true;
      }
      std::stable_sort(first, first + block.action_count,
                       [](const MemoryAction& a, const MemoryAction& b) { return a.op < b.op; });
    }
    return changed;
  });
  EXPECT_GT(refused.refused, refused.plans / 3) << "of " << refused.plans;
  EXPECT_THAT(refused.first, HasSubstr("on stream compute may touch"));
  EXPECT_THAT(refused.first, HasSubstr("on stream model-parallel does"));
}

TEST(PlacesFree, NotWhereAPassThatIsPutOffJoinsNothing) {
  const Refused refused = refused_once([](Schedule& schedule) {
    bool changed = false;
    for (const Section& section : schedule.sections) {
      if (!section.pass || section.pass->kind != PassKind::kBackwardWeight) continue;
      for (std::uint32_t b = 0; b < section.block_count; ++b) {
        const Block& block = schedule.blocks[section.first_block + b];
        for (std::uint32_t i = 0; i < block.op_count; ++i) {
          Op& op = schedule.ops[block.first_op + i];
          if (op.kind != OpKind::kHostWork || !op.waits[0]) continue;
          op.waits[0] = {};
          changed = true;
        }
      }
    }
    return changed;
  });
  EXPECT_GT(refused.plans, 0);
  EXPECT_EQ(refused.refused, refused.plans) << refused.first;
}

TEST(PlacesFree, NotWhereACollectiveWaitsForNothing) {
  const Refused refused = refused_once([](Schedule& schedule) {
    for (Op& op : schedule.ops) {
      if (moves_activations(op)) std::fill(std::begin(op.waits), std::end(op.waits), EventRef{});
    }
    return true;
  });
  EXPECT_GT(refused.refused, refused.plans / 2) << "of " << refused.plans;
}

TEST(PlacesFree, NotWhereAReductionWaitsForNothing) {
  const Refused refused = refused_once([](Schedule& schedule) {
    bool changed = false;
    for (Op& op : schedule.ops) {
      if (op.kind != OpKind::kReduceScatter || op.collective || !op.waits[0]) continue;
      std::fill(std::begin(op.waits), std::end(op.waits), EventRef{});
      changed = true;
    }
    return changed;
  });
  EXPECT_GT(refused.refused, refused.plans / 2) << "of " << refused.plans;
}

TEST(PlacesFree, SaysWhichTwoOperationsMeet) {
  Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  plan.parallel.tp = 2;
  std::vector<Schedule> stages = executed_step(tiny_llama(), plan, native(), 2).stages;
  EXPECT_NO_THROW(check_places_free(stages));
  for (Op& op : stages.front().ops) {
    if (moves_activations(op)) op.waits[0] = {};
  }
  EXPECT_EQ(refusal_of([&] { check_places_free(stages); }),
            "a step of this plan would train on overwritten values: embedding.forward."
            "reduce_scatter on stream model-parallel may touch 'partial_sum' while "
            "embedding.forward.embedding on stream compute does");
}

}  // namespace
}  // namespace shardwright::sim
