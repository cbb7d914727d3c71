// SPDX-License-Identifier: Apache-2.0
// A table that is embedding and head between the stages of a pipeline: its copies' memory, and the
// exchange of their gradients as it is predicted and proven to end.

#include "sim/core/placement.h"
#include "sim/cost/op_cost.h"
#include "sim/pipeline/completes.h"
#include "sim/pipeline/pipeline_step.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/sim/stage_walk.h"

namespace shardwright::sim {
namespace {

Model tied_llama() {
  Model model = llama_70b();
  model.layers = 8;
  model.tied_head = true;
  return model;
}

const profiles::Profile& tied_profile() {
  static const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  return profile;
}

Plan tied_plan(PipelineKind kind, std::int64_t pp, std::int64_t virtual_stages,
               Strategy strategy = Strategy::kZero1) {
  Plan plan = plan_of(4 * pp, 2, pp, 8);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = virtual_stages;
  plan.seq_len = 2048;
  plan.stack = "native";
  plan.strategy = strategy;
  return plan;
}

std::vector<Plan> tied_plans(Strategy strategy) {
  using enum PipelineKind;
  return {tied_plan(kGpipe, 2, 1, strategy), tied_plan(kOneForwardOneBackward, 4, 1, strategy),
          tied_plan(kInterleaved, 2, 2, strategy), tied_plan(kZb1p, 4, 1, strategy),
          tied_plan(kZbv, 2, 2, strategy)};
}

std::vector<Schedule> tied_stages_of(const Plan& plan, const Model& model = tied_llama()) {
  return executed_step(model, plan, tied_profile().stack, tied_profile().cluster.gpus_per_node)
      .stages;
}

TEST(TiedStages, AllocateWhatIsPredicted) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero3, Strategy::kYafsdp}) {
    for (const Plan& plan : tied_plans(strategy)) {
      SCOPED_TRACE(std::string(name_of(strategy)) + " " +
                   std::string(name_of(plan.parallel.schedule())));
      const Prediction predicted = predict(tied_llama(), tied_profile(), plan);
      const std::vector<Schedule> stages = tied_stages_of(plan);
      EXPECT_THAT(StageWalk(stages).faults(), IsEmpty());
      ASSERT_EQ(predicted.stages.size(), stages.size());
      for (std::size_t s = 0; s < stages.size(); ++s)
        EXPECT_EQ(predicted.stages[s].peak_allocated_bytes, static_memory_bytes(stages[s])) << s;
    }
  }
}

TEST(TiedStages, OneRankThatSumsTheUsesApartAllocatesWhatIsPredicted) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kYafsdp}) {
    for (const std::int64_t accum : {1, 4}) {
      Plan plan = plan_of(4, 1, 1, accum);
      plan.seq_len = 2048;
      plan.stack = "native";
      plan.strategy = strategy;
      plan.sum_uses = 2;
      const Bytes predicted =
          predict(tied_llama(), tied_profile(), plan).memory.peak_reserved_bytes;
      const std::vector<Schedule> stages = tied_stages_of(plan);
      ASSERT_EQ(stages.size(), 1u);
      EXPECT_EQ(predicted, static_memory_bytes(stages[0])) << name_of(strategy) << accum;
      EXPECT_THAT(StageWalk(stages).faults(), IsEmpty());
    }
  }
}

/// Where the compute stream has got to when the norm begins: gradients whose reduction it has not
/// waited for.
std::vector<std::string> not_awaited(const Schedule& stage) {
  const auto units = static_cast<std::size_t>(stage.units());
  std::vector<std::size_t> recorded(stage.event_names.size() * units, 0);
  std::vector<std::pair<std::size_t, std::string>> reductions;  // by stream, in order of issue
  std::size_t issued = 0, awaited = 0;
  std::vector<std::string> late;
  bool normed = false;
  for_each_op(stage, [&](const OpInstance& at, const Op& op) {
    const auto event = [&](const EventRef& ref) -> std::size_t* {
      const std::int32_t unit = at.unit + ref.offset;
      return ref && unit >= 0 && unit < stage.units()
                 ? &recorded[ref.name * units + static_cast<std::size_t>(unit)]
                 : nullptr;
    };
    if (normed) return;
    if (op.stream == 0) {
      for (const EventRef& wait : op.waits) {
        if (const std::size_t* place = event(wait)) awaited = std::max(awaited, *place);
      }
    }
    if (op.kind == OpKind::kGradientNorm) {
      normed = true;
      for (const auto& [place, name] : reductions) {
        if (place > awaited) late.push_back(name);
      }
      return;
    }
    const bool reduces = is_collective(op.kind) && op.phase == Phase::kReduce && !op.collective;
    if (reduces) reductions.emplace_back(++issued, describe(stage, at));
    // All reductions are on one stream.
    if (std::size_t* place = event(op.record); place != nullptr && reduces) *place = issued;
  });
  return late;
}

TEST(TiedStages, TheNormWaitsForAllReductions) {
  for (const bool is_tied : {true, false}) {
    Model model = tied_llama();
    model.tied_head = is_tied;
    for (const Plan& plan : tied_plans(Strategy::kZero1)) {
      for (const Schedule& stage : tied_stages_of(plan, model))
        EXPECT_THAT(not_awaited(stage), IsEmpty()) << name_of(plan.parallel.schedule()) << is_tied;
    }
  }
  // The mark that a tied embedding's sum begins with waits for them.
  Schedule first = tied_stages_of(tied_plan(PipelineKind::kZbv, 2, 2)).front();
  for (Op& op : first.ops) {
    if (op.kind == OpKind::kSend && op.stream == 0 && op.phase == Phase::kReduce) op.waits[0] = {};
  }
  EXPECT_THAT(not_awaited(first), Not(IsEmpty()));
}

Bytes master_bytes(const std::vector<Schedule>& stages) {
  Bytes bytes = 0;
  for (const Schedule& stage : stages) {
    for (const PersistentTensor& tensor : stage.persistent)
      bytes += tensor.kind == Persistent::kMaster ? tensor.bytes : 0;
  }
  return bytes;
}

TEST(TiedStages, HoldACopyEachUnlessOneHasBothEnds) {
  Model untied = tied_llama();
  untied.tied_head = false;
  const auto plan = tied_plan(PipelineKind::kOneForwardOneBackward, 2, 1);
  // Two tables either way; a last norm's room beside the embedding.
  const Bytes share = 4 / 2;  // fp32, two replicas
  EXPECT_EQ(master_bytes(tied_stages_of(plan)),
            master_bytes(tied_stages_of(plan, untied)) + share * untied.hidden);
  const auto v = tied_plan(PipelineKind::kZbv, 2, 2);
  EXPECT_EQ(master_bytes(tied_stages_of(v)),
            master_bytes(tied_stages_of(v, untied)) - share * untied.vocab / 2 * untied.hidden);
}

std::vector<Op*> exchanges(Schedule& stage, OpKind kind) {
  std::vector<Op*> ops;
  for (Op& op : stage.ops) {
    if (op.kind == kind && op.peer >= 0 && op.phase == Phase::kReduce) ops.push_back(&op);
  }
  return ops;
}

TEST(TiedStages, ExchangeOneShareOnChannelsOfItsOwn) {
  for (const Plan& plan : tied_plans(Strategy::kZero1)) {
    std::vector<Schedule> stages = tied_stages_of(plan);
    const bool is_v = plan.parallel.schedule() == PipelineKind::kZbv;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const bool has_copy = !is_v && (s == 0 || s + 1 == stages.size());
      for (const OpKind kind : {OpKind::kSend, OpKind::kReceive}) {
        const std::vector<Op*> found = exchanges(stages[s], kind);
        ASSERT_EQ(found.size(), has_copy ? 1 : 0);
        if (!has_copy) continue;
        const Model model = tied_llama();
        // Of fp32 gradients, between two tensor ranks and two replicas; with room for the norm.
        EXPECT_EQ(found[0]->work.bytes, 4 * (model.vocab / 2 + 1) * model.hidden / 2);
        EXPECT_EQ(found[0]->peer, static_cast<int>(s == 0 ? stages.size() - 1 : 0));
      }
    }
  }
}

TEST(TiedStages, AMessageThatIsNotSentIsNamed) {
  std::vector<Schedule> stages = tied_stages_of(tied_plan(PipelineKind::kZb1p, 4, 1));
  EXPECT_NO_THROW(check_completes(stages));
  exchanges(stages[3], OpKind::kSend)[0]->channel += 2;
  EXPECT_EQ(refusal_of([&] { check_completes(stages); }),
            "a step of this pipeline would not end: stage 0 waits for the input of the tied "
            "embedding's gradient from stage 3, which sends 0 messages on channel 9 and not 1");
  stages = tied_stages_of(tied_plan(PipelineKind::kZb1p, 4, 1));
  exchanges(stages[0], OpKind::kReceive)[0]->work.bytes = 5;
  EXPECT_THAT(refusal_of([&] { check_completes(stages); }),
              ::testing::HasSubstr("for the 5 bytes that the tied embedding's gradient expects"));
}

// A stage that waits for the other's gradient before it sends what that one needs for its own.
TEST(TiedStages, ACycleIsNamed) {
  std::vector<Schedule> stages = tied_stages_of(tied_plan(PipelineKind::kGpipe, 2, 1));
  std::vector<Section>& first = stages[0].sections;
  const auto exchange = std::find_if(first.begin(), first.end(), [&](const Section& section) {
    return !section.pass && section.first_block > first[1].first_block &&
           stages[0].blocks[section.first_block].phase == Phase::kReduce;
  });
  ASSERT_NE(exchange, first.end());
  std::rotate(first.begin() + 1, exchange, exchange + 1);
  EXPECT_EQ(
      refusal_of([&] { check_completes(stages); }),
      "a step of this pipeline would not end: stage 0 waits for the tied embedding's gradient "
      "from stage 1, which waits for forward 0 of chunk 0 from stage 0");
}

TEST(TiedStages, TheExchangeTakesItsTimeBehindTheReductions) {
  const Plan plan = tied_plan(PipelineKind::kOneForwardOneBackward, 4, 1);
  const Model model = tied_llama();
  ProgramCache cache(model, tied_profile().stack, tied_profile().cluster.gpu);
  PipelineSimulator simulator(model, tied_profile(), cache);
  PipelineRecord record;
  simulator.run(plan, &record);
  const double bytes = 4.0 * static_cast<double>((model.vocab / 2 + 1) * model.hidden / 2);
  const Nanoseconds transfer = to_ns(simulator.timer().operations().transfer_s(0, bytes));
  for (const std::size_t s : {0, 3}) {
    EXPECT_GT(record.tails[s].tied_ns, transfer);
    EXPECT_GE(record.tails[s].reduction_ns, record.tails[s].tied_ns);
  }
  EXPECT_EQ(record.tails[1].tied_ns, 0);
}

TEST(TiedStages, ATimelineShowsTheExchange) {
  const Plan plan = tied_plan(PipelineKind::kOneForwardOneBackward, 2, 1);
  Predictor predictor(tied_llama(), tied_profile());
  Timeline timeline;
  PredictOptions options;
  options.timeline = &timeline;
  predictor.predict(plan, options);
  std::set<OpId> exchanged;
  for (const Schedule& stage : predictor.program().stages) {
    for_each_op(stage, [&](const OpInstance& at, const Op& op) {
      if (op.weight == Weight::kHead && op.phase == Phase::kReduce) exchanged.insert(at.id);
    });
  }
  EXPECT_EQ(exchanged.size(), 2 * 3);  // sent, received, added
  for (const Span& span : timeline.spans) exchanged.erase(span.id);
  EXPECT_THAT(exchanged, IsEmpty());
}

}  // namespace
}  // namespace shardwright::sim
