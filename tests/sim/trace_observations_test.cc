// SPDX-License-Identifier: Apache-2.0

#include <nlohmann/json.hpp>

#include "sim/core/base/atomic_file.h"
#include "sim/core/chrome_trace.h"
#include "sim/trace/observations.h"
#include "tests/sim/prediction.h"
#include "tests/support/files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

using profiles::Observation;
using profiles::ObservationSet;
using testing::get;

/// Two ranks and two steps of a plan, in which operation `id` takes id + 1 microseconds on rank 0
/// and twice that on rank 1, one after the other with gaps of half a microsecond.
class TraceObservationsTest : public ::testing::Test {
 protected:
  TraceObservationsTest() {
    const std::filesystem::path config = profiles::data_dir() / "examples" / "tiny-llama.json";
    identity_ = {config.string(), get(config), testing::tiny_plan(Strategy::kYafsdp, 2, 2), 2};
    const Model model = model_of(identity_, "test");
    schedule_ =
        executed_step(model, identity_.plan, profiles::load_stack(identity_.plan.stack).stack, 2)
            .stages.front();
    timeline_.source = "measured";
    for (const Stream& stream : schedule_.streams) timeline_.streams.emplace_back(stream.name);
    Nanoseconds begin = 0;
    for (std::int32_t step = 3; step < 5; ++step) {
      for (std::int32_t rank = 0; rank < 2; ++rank) {
        Nanoseconds at = begin;
        for_each_op(schedule_, [&](const OpInstance& instance, const Op& op) {
          if (op.work.kind == WorkKind::kHost) return;
          Span span;
          span.id = instance.id;
          span.rank = rank;
          span.step = step;
          span.stream = op.stream;
          span.begin_ns = at;
          span.end_ns = at + (instance.id + 1) * 1000 * (rank + 1);
          at = span.end_ns + 500;
          timeline_.spans.push_back(span);
        });
        end_ = std::max(end_, at);
      }
      begin = end_;
    }
  }

  std::filesystem::path written(TraceNotes more = {{"streams", "inline"}}) {
    TraceNotes notes = notes_of(identity_);
    notes.insert(notes.end(), more.begin(), more.end());
    const auto path = testing::temp_folder() / "own_trace.json";
    write_chrome_trace(path, std::vector<TracedTimeline>{{"measured", &schedule_, &timeline_}},
                       notes);
    return path;
  }

  static ObservationSet observed(const std::filesystem::path& file) {
    return observations_of(read_step_trace(file));
  }

  TraceIdentity identity_;
  Schedule schedule_;
  Timeline timeline_;
  Nanoseconds end_ = 0;
};

TEST_F(TraceObservationsTest, JoinsEveryOperationWithItsWork) {
  const ObservationSet set = observed(written());
  std::map<std::int64_t, std::int64_t> gemms;  // executions by m * n * k
  for_each_op(schedule_, [&](const OpInstance&, const Op& op) {
    if (op.work.kind == WorkKind::kGemm) ++gemms[op.work.m * op.work.n * op.work.k];
  });
  ASSERT_FALSE(gemms.empty());
  std::map<std::int64_t, std::int64_t> seen;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kGemm) ++seen[o.work.m * o.work.n * o.work.k];
  }
  for (const auto& [shape, count] : gemms) EXPECT_EQ(seen[shape], 4 * count) << shape;
  EXPECT_EQ(set.sources.at(0).world_size, 2);
}

TEST_F(TraceObservationsTest, RanksShareTheInstanceOfACollective) {
  const ObservationSet set = observed(written());
  std::map<std::int64_t, std::vector<const Observation*>> instances;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kHost) continue;
    if (o.instance >= 0) instances[o.instance].push_back(&o);
    EXPECT_EQ(o.instance >= 0,
              o.work.kind == WorkKind::kCollective || o.op == OpKind::kGradientNorm);
  }
  ASSERT_GT(instances.size(), 10U);
  for (const auto& [instance, ranks] : instances) {
    ASSERT_EQ(ranks.size(), 2U);
    EXPECT_EQ(ranks[0]->ranks, 2);
    EXPECT_EQ(ranks[0]->step, ranks[1]->step);
    EXPECT_NEAR(ranks[1]->seconds, 2 * ranks[0]->seconds, 1e-9);
  }
}

TEST_F(TraceObservationsTest, CopiesBetweenRanksOnGpusAreNoLinkSpeed) {
  const auto collectives = [&](const char* device, const char* transport) {
    const ObservationSet set = observed(written({{"device", device}, {"transport", transport}}));
    const auto of_nccl = [](const Observation& o) { return o.work.kind == WorkKind::kCollective; };
    return std::pair(std::ranges::count_if(set.observations, of_nccl), set.left_out.size());
  };
  const auto [by_nccl, left_out] = collectives("cuda", "nccl");
  EXPECT_GT(by_nccl, 10);
  EXPECT_EQ(collectives("host", "local").first, by_nccl);
  EXPECT_EQ(collectives("cuda", "local"), std::pair(std::ptrdiff_t{0}, left_out + 1));
}

TEST_F(TraceObservationsTest, WhatAnotherOperationDidSaysNothingOfACopy) {
  const auto sums = [&](const TraceNotes& notes) {
    const ObservationSet set = observed(written(notes));
    return std::ranges::count_if(set.observations, [](const Observation& o) {
      return o.work.kind == WorkKind::kMemory && o.op == OpKind::kAccumulate &&
             o.phase == Phase::kReduce;
    });
  };
  EXPECT_GT(sums({{"streams", "inline"}}), 0) << "of a prediction";
  EXPECT_EQ(sums({{"device", "host"}, {"streams", "inline"}}), 0)
      << "the executor's reductions add onto their sums";
}

TEST_F(TraceObservationsTest, GapsOfInlineStreamsAreTheCostOfIssuing) {
  const ObservationSet set = observed(written());
  std::int64_t launches = 0;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind != WorkKind::kHost) continue;
    ++launches;
    EXPECT_EQ(o.work.kernels, 1);
    EXPECT_NEAR(o.seconds, 0.5e-6, 1e-12);
  }
  EXPECT_GT(launches, 100);
}

TEST_F(TraceObservationsTest, WhatAStepTakesBeyondItsOperationsIsSeen) {
  const double covered = static_cast<double>(end_) * 1e-9 / 2;
  const ObservationSet set =
      observed(written({{"streams", "inline"},
                        {"step_time_s", nlohmann::json{covered + 0.001, covered + 0.002}.dump()}}));
  std::vector<double> beyond;
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind == WorkKind::kHost && o.work.kernels == 0) beyond.push_back(o.seconds);
  }
  ASSERT_EQ(beyond.size(), 2U);
  EXPECT_NEAR(beyond[0], 0.001, 2e-6);
  EXPECT_NEAR(beyond[1], 0.002, 2e-6);
  EXPECT_EQ(set.sources.at(0).step_s.size(), 2U);
}

TEST_F(TraceObservationsTest, AKernelBesideACollectiveIsContended) {
  // The first gather now covers everything of its rank and step.
  Span& gather = timeline_.spans.front();
  ASSERT_EQ(schedule_.ops.front().work.kind == WorkKind::kHost || gather.stream != 0, true);
  gather.end_ns = end_ / 2;
  const ObservationSet set = observed(written());
  for (const Observation& o : not_empty(set.observations)) {
    if (o.work.kind != WorkKind::kGemm) continue;
    EXPECT_EQ(o.contended, o.rank == 0 && o.step == 3 ? 1.0 : 0.0);
  }
}

TEST_F(TraceObservationsTest, RefusesTracesOfOtherVersionsAndWithoutAPlan) {
  const auto path = written();
  const std::string text = get(path);
  const auto other = testing::temp_folder() / "other.json";
  std::string renamed = text;
  const std::string name = "layer1.forward.norm";
  renamed.replace(renamed.find(name), name.size(), "layer9.forward.norm");
  write_file_atomically(other, renamed);
  EXPECT_THAT(refusal_of([&] { observed(other); }), HasSubstr("layer9.forward.norm"));
  write_file_atomically(other, R"({"traceEvents":[]})");
  EXPECT_THROW(observed(other), Error);
}

// What parses files is given damaged ones: every prefix and every lost piece is an Error or a
// set.
TEST_F(TraceObservationsTest, DamagedTracesAreRefusedOrReadInPart) {
  const std::string text = get(written());
  const auto path = testing::temp_folder() / "damaged.json";
  std::size_t refused = 0, tries = 0;
  for (std::size_t cut = 0; cut < text.size(); cut += 1 + text.size() / 15) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{7}, text.size()}) {
      std::string damaged = text;
      damaged.erase(cut, length);
      write_file_atomically(path, damaged);
      ++tries;
      try {
        const ObservationSet set = observed(path);
        EXPECT_FALSE(set.observations.empty());
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, tries / 2);
}

TEST(TraceIdentityTest, NamesWhatDiffers) {
  TraceIdentity a;
  a.model_config = R"({"hidden_size":64,"vocab_size":256})";
  a.plan = testing::tiny_plan(Strategy::kYafsdp, 2);
  TraceIdentity b = a;
  EXPECT_TRUE(differences(a, b).empty());
  b.plan.grad_accum = 4;
  b.model_config = R"({"hidden_size":128,"vocab_size":256})";
  const std::vector<std::string> found = differences(a, b);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0], "the model's hidden_size is 64, not 128");
  EXPECT_EQ(found[1], "the plan's grad_accum is 1, not 4");
}

TEST(TraceIdentityTest, SurvivesItsNotes) {
  TraceIdentity a;
  a.model = "m";
  a.model_config = R"({"hidden_size":64})";
  a.plan = testing::tiny_plan(Strategy::kHsdp, 4);
  a.plan.shard_group = 2;
  a.gpus_per_node = 4;
  std::map<std::string, std::string> notes;
  for (const auto& [key, value] : notes_of(a)) notes[key] = value;
  const auto b = identity_in(notes, "test");
  ASSERT_TRUE(b);
  EXPECT_EQ(b->plan, a.plan);
  EXPECT_EQ(b->gpus_per_node, 4);
  EXPECT_FALSE(identity_in({}, "test"));
  notes["gpus_per_node"] = "none";
  EXPECT_THROW(identity_in(notes, "test"), Error);
}

}  // namespace
}  // namespace shardwright::sim
