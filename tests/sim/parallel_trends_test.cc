// SPDX-License-Identifier: Apache-2.0
// Trends that published runs agree on, with the sizes that they have there
// (profiles/data/published/parallel.csv).

#include "sim/pipeline/pipeline_step.h"
#include "sim/score/validation.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {
namespace {

struct Times {
  double measured = 0, predicted = 0;
};

/// Times of published runs by id.
std::map<std::string, Times> times_of(const std::vector<std::string>& ids) {
  static const std::vector<profiles::LedgerRow> ledger =
      profiles::load_ledger(profiles::data_dir() / "published" / "parallel.csv");
  std::vector<profiles::LedgerRow> rows;
  for (const profiles::LedgerRow& row : ledger) {
    if (std::find(ids.begin(), ids.end(), row.id) != ids.end()) rows.push_back(row);
  }
  std::map<std::string, Times> times;
  for (const ValidatedRow& row : validate(rows).rows) {
    EXPECT_TRUE(row.time_error) << row.row.id << ": " << row.skipped;
    const double predicted = row.prediction.time.iteration_s;
    times[row.row.id] = {predicted / (1 + row.time_error.value_or(0)), predicted};
  }
  EXPECT_EQ(times.size(), ids.size());
  return times;
}

// Korthikanti et al. 2022, table 5: sequence parallelism with selective recomputation against full
// recomputation, 22B and 175B: 22.5 and 24.2 % less time.
TEST(PublishedTrends, SelectiveRecomputationSavesWhatKorthikantiMeasured) {
  auto times = times_of({"p0173", "p0174", "p0175", "p0176"});
  for (const auto& [full, selective] :
       std::map<std::string, std::string>{{"p0173", "p0174"}, {"p0175", "p0176"}}) {
    const double measured = 1 - times[selective].measured / times[full].measured;
    const double predicted = 1 - times[selective].predicted / times[full].predicted;
    EXPECT_NEAR(predicted, measured, 0.05) << full;
  }
}

// NVIDIA dgxc-benchmarking, H100, bf16: as many GPUs as sequences, 8 times as many of both.
TEST(PublishedTrends, WeakScalingIsFlat) {
  auto times = times_of({"p0126", "p0129", "p0138", "p0143", "p0154", "p0156"});
  for (const auto& [small, large] : std::map<std::string, std::string>{
           {"p0126", "p0129"}, {"p0138", "p0143"}, {"p0154", "p0156"}}) {
    const double measured = times[large].measured / times[small].measured;
    const double predicted = times[large].predicted / times[small].predicted;
    EXPECT_NEAR(predicted, measured, 0.03) << small;
    EXPECT_GT(predicted, 0.99) << small;
  }
}

// SimuMax, B200, one node: tp 2, 4 and 8 at one batch.
TEST(PublishedTrends, DoublingTensorParallelismCostsMoreEachTime) {
  auto times = times_of({"p1005", "p1014", "p1023", "p1006", "p1015"});
  const auto grows = [&](const std::string& less, const std::string& more, double Times::*kind) {
    return times[more].*kind / times[less].*kind;
  };
  for (double Times::*kind : {&Times::measured, &Times::predicted}) {
    EXPECT_GT(grows("p1005", "p1014", kind), 1.02);
    EXPECT_GT(grows("p1006", "p1015", kind), grows("p1005", "p1014", kind));
  }
}

// The same rows with twice and four times the micro-batches: more sequences a second.
TEST(PublishedTrends, MoreMicroBatchesGiveMoreSequencesASecond) {
  auto times = times_of({"p1004", "p1012", "p1020", "p1005", "p1013", "p1021"});
  for (const char first : {'4', '5'}) {
    const std::string few = std::string("p100") + first;
    const std::string more = first == '4' ? "p1012" : "p1013";
    const std::string most = first == '4' ? "p1020" : "p1021";
    for (double Times::*kind : {&Times::measured, &Times::predicted}) {
      EXPECT_LT(times[more].*kind / 8, times[few].*kind / 4);
      EXPECT_LT(times[most].*kind / 32, times[more].*kind / 8);
    }
    const double measured = times[most].measured / 32 / (times[few].measured / 4);
    const double predicted = times[most].predicted / 32 / (times[few].predicted / 4);
    EXPECT_NEAR(predicted, measured, 0.06);
  }
}

// (p - 1) / v of a micro-batch waits; every chunk more sends its activations once more.
TEST(PublishedTrends, VirtualStagesDivideTheBubbleAndMultiplyTransfers) {
  const Model model = llama_70b();
  double bubble_s = 0, sent = 0;
  for (const std::int64_t v : {2, 5, 10}) {
    Plan plan = plan_of(64, 4, 4, 32);
    plan.parallel.virtual_stages = v;
    const Prediction step = predict(model, h100(), plan);
    const double now_s = step.pipeline.bubble * step.time.iteration_s;
    const double now_sent = step.sent[static_cast<std::size_t>(CommGroup::kPipeline)].total();
    if (bubble_s > 0) {
      EXPECT_LT(now_s, bubble_s);
      EXPECT_GT(now_sent, sent);
    }
    bubble_s = now_s;
    sent = now_sent;
  }
}

// Megatron Core's guide: "EP8xTP1 outperforms EP4xTP2" for Mixtral 8x7B.
TEST(PublishedTrends, ExpertParallelismBeatsTensorParallelismForMixtral) {
  const Model model = shipped("mixtral-8x7b");
  Plan wide = plan_of(64, 1, 4, 16);
  wide.seq_len = 4096;
  wide.parallel.ep = 8;
  wide.parallel.dispatcher = Dispatcher::kAllToAll;
  wide.parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
  Plan deep = wide;
  deep.parallel.tp = 2;
  deep.parallel.ep = 4;
  deep.grad_accum = 32;
  EXPECT_LT(predict(model, h100(), wide).time.iteration_s,
            predict(model, h100(), deep).time.iteration_s);
}

/// What leaves a rank arrives at others: bytes of a ring gather counted hop by hop.
TEST(ConservationTest, WhatAMemberSendsOthersReceive) {
  for (const int ranks : {2, 4, 8}) {
    const double part = 3;
    std::vector<double> sent(static_cast<std::size_t>(ranks)), received(sent);
    for (int hop = 0; hop + 1 < ranks; ++hop) {
      for (int r = 0; r < ranks; ++r) {
        sent[static_cast<std::size_t>(r)] += part;
        received[static_cast<std::size_t>((r + 1) % ranks)] += part;
      }
    }
    CollectiveWork gather;
    gather.bytes = part * ranks;
    for (int r = 0; r < ranks; ++r) {
      EXPECT_DOUBLE_EQ(sent[static_cast<std::size_t>(r)], received[static_cast<std::size_t>(r)]);
      EXPECT_DOUBLE_EQ(sent[static_cast<std::size_t>(r)], sent_bytes(gather, ranks).total());
    }
    // An all-reduce scatters the sum and gathers it.
    gather.kind = Collective::kAllReduce;
    EXPECT_DOUBLE_EQ(2 * sent[0], sent_bytes(gather, ranks).total());
  }
}

/// Stages at the ends send one way.
TEST(ConservationTest, PipelineBytesAreMessagesTimesTheirSize) {
  const Model model = llama_70b();
  for (const std::int64_t v : {1, 5}) {
    Plan plan = plan_of(64, 4, 4, 16);
    plan.parallel.virtual_stages = v;
    ProgramCache programs(model, h100().stack, h100().cluster.gpu);
    PipelineRecord record;
    const SimulatedStep step = PipelineSimulator(model, h100(), programs).run(plan, &record);
    const double message = 2.0 * (8192 / 4) * 8192;
    double sends = 0;
    for (std::int32_t c = 0; c < record.shape.chunks; ++c) {
      const ChunkPlace here{static_cast<std::int32_t>(step.busiest), c};
      sends += next_chunk(record.shape, here) ? 1 : 0;
      sends += previous_chunk(record.shape, here) ? 1 : 0;
    }
    EXPECT_DOUBLE_EQ(step.sent[static_cast<std::size_t>(CommGroup::kPipeline)].total(),
                     16 * sends * message);
  }
}

}  // namespace
}  // namespace shardwright::sim
