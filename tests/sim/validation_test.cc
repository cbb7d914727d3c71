// SPDX-License-Identifier: Apache-2.0
#include "sim/score/validation.h"

#include "sim/core/units.h"
#include "tests/sim/prediction.h"

namespace shardwright::sim {

namespace {

using profiles::LedgerRow;
using profiles::MemoryCounter;

LedgerRow shipped_row(const std::string& id) {
  for (const LedgerRow& row : profiles::load_ledger(profiles::shipped_ledger())) {
    if (row.id == id) return row;
  }
  ADD_FAILURE() << "no row " << id;
  return {};
}

double gib(Bytes bytes) {
  return static_cast<double>(bytes) / kGiB;
}

TEST(Validation, ScoresEachRowAgainstWhatWasMeasured) {
  LedgerRow timed = shipped_row("m001");
  LedgerRow sized = shipped_row("m111");
  const Validation result = validate({timed, sized});
  ASSERT_EQ(result.rows.size(), 2U);
  const ValidatedRow& a = result.rows[0];
  EXPECT_EQ(a.skipped, "");
  EXPECT_DOUBLE_EQ(*a.time_error, a.prediction.time.iteration_s / 0.81 - 1);
  EXPECT_FALSE(a.memory_error);
  const ValidatedRow& b = result.rows[1];
  EXPECT_FALSE(b.time_error);
  EXPECT_DOUBLE_EQ(*b.memory_error, gib(b.prediction.memory.peak_allocated_bytes) / 38.668 - 1);

  EXPECT_EQ(result.all.time.n, 1);
  EXPECT_DOUBLE_EQ(result.all.time.mape, std::abs(*a.time_error));
  EXPECT_EQ(result.all.memory.n, 1);
  EXPECT_DOUBLE_EQ(result.all.memory.worst, std::abs(*b.memory_error));
  EXPECT_EQ(result.by_source.size(), 2U);
  EXPECT_EQ(result.by_source.at("DLRover/ATorch").time.n, 0);
}

TEST(Validation, ComparesMemoryWithTheCounterThatTheRowNames) {
  LedgerRow row = shipped_row("m094");
  row.peak_gib = 30;
  std::vector<LedgerRow> rows;
  for (const MemoryCounter counter :
       {MemoryCounter::kPeakAllocated, MemoryCounter::kPeakActive, MemoryCounter::kPeakReserved}) {
    row.counter = counter;
    rows.push_back(row);
  }
  const Validation result = validate(rows);
  const MemoryPrediction& memory = result.rows[0].prediction.memory;
  EXPECT_DOUBLE_EQ(result.rows[0].predicted_peak_gib, gib(memory.peak_allocated_bytes));
  EXPECT_DOUBLE_EQ(result.rows[1].predicted_peak_gib, gib(memory.peak_active_bytes));
  EXPECT_DOUBLE_EQ(result.rows[2].predicted_peak_gib, gib(memory.peak_reserved_bytes));
  EXPECT_LE(result.rows[0].predicted_peak_gib, result.rows[1].predicted_peak_gib);
  EXPECT_LT(result.rows[1].predicted_peak_gib, result.rows[2].predicted_peak_gib);
  EXPECT_DOUBLE_EQ(*result.rows[2].memory_error, result.rows[2].predicted_peak_gib / 30 - 1);
}

TEST(Validation, CountsPeaksInsideTheirInterval) {
  LedgerRow row = shipped_row("m094");
  const MemoryPrediction memory = validate({row}).rows[0].prediction.memory;
  const double peak = gib(memory.peak_reserved_bytes);
  const auto width = [&](std::size_t end) {
    return std::log(static_cast<double>(memory.interval_bytes[end] - memory.runtime_bytes) /
                    static_cast<double>(memory.peak_reserved_bytes));
  };
  const double less = -width(0), more = width(1);
  ASSERT_GT(less, 0.01);
  ASSERT_GT(more, 0.01);
  row.counter = MemoryCounter::kPeakReserved;
  std::vector<LedgerRow> rows;
  for (const double log : {-1.01 * less, -0.99 * less, 0.99 * more, 1.01 * more}) {
    row.peak_gib = peak * std::exp(log);
    rows.push_back(row);
  }
  const Validation result = validate(rows);
  EXPECT_FALSE(result.rows[0].inside_memory_interval);
  EXPECT_TRUE(result.rows[1].inside_memory_interval);
  EXPECT_TRUE(result.rows[2].inside_memory_interval);
  EXPECT_FALSE(result.rows[3].inside_memory_interval);
  EXPECT_EQ(result.all.inside_memory_interval, 2);
}

TEST(Validation, SkipsWhatCannotBePredictedAndCountsWhy) {
  LedgerRow impossible = shipped_row("m001");
  impossible.plan.gpus = 60;
  const Validation result = validate({impossible, shipped_row("m002")});
  EXPECT_THAT(result.rows[0].skipped, HasSubstr("gpus is 60, expected a multiple of the 8 GPUs"));
  EXPECT_FALSE(result.rows[0].time_error);
  EXPECT_EQ(result.rows[1].skipped, "");
  EXPECT_EQ(result.all.skipped, 1);
  EXPECT_EQ(result.all.predicted, 1);
  EXPECT_EQ(result.all.time.n, 1);
  EXPECT_EQ(result.skipped_because.at(result.rows[0].skipped), 1);
}

// A run that died for want of memory is predicted right when the plan does not fit, and only then.
TEST(Validation, JudgesOutcomesByWhatFits) {
  LedgerRow small = shipped_row("m001");
  LedgerRow large = shipped_row("m025");  // 70B
  large.plan.gpus = 8;
  large.plan.shard_group = 0;
  std::vector<LedgerRow> rows{small, small, large, large};
  rows[1].out_of_memory = rows[3].out_of_memory = true;
  const Validation result = validate(rows);
  EXPECT_TRUE(result.rows[0].prediction.memory.fits);
  EXPECT_FALSE(result.rows[2].prediction.memory.fits);
  EXPECT_TRUE(result.rows[0].outcome_right);
  EXPECT_FALSE(result.rows[1].outcome_right);
  EXPECT_FALSE(result.rows[2].outcome_right);
  EXPECT_TRUE(result.rows[3].outcome_right);
  EXPECT_EQ(result.all.wrong_outcomes, 2);
}

TEST(Validation, PairsRowsThatDifferOnlyInStrategy) {
  const Validation result =
      validate({shipped_row("m002"), shipped_row("m001"), shipped_row("m003")});
  ASSERT_EQ(result.speedups.size(), 1U);
  const SpeedupPair& pair = result.speedups[0];
  EXPECT_EQ(pair.yafsdp, 1U);
  EXPECT_EQ(pair.fsdp1, 0U);
  EXPECT_DOUBLE_EQ(pair.measured, 1 - 0.81 / 0.90);
  EXPECT_DOUBLE_EQ(pair.predicted, 1 - result.rows[1].prediction.time.iteration_s /
                                           result.rows[0].prediction.time.iteration_s);
}

TEST(Validation, DoesNotDependOnTheNumberOfThreads) {
  std::vector<LedgerRow> rows;
  for (const char* id : {"m001", "m018", "m040", "m091", "m106", "m113", "m115", "m119"}) {
    rows.push_back(shipped_row(id));
  }
  ValidationOptions one, many;
  one.threads = 1;
  many.threads = 5;
  std::int64_t reported = 0;
  many.progress = [&](std::int64_t done) { EXPECT_EQ(done, ++reported); };
  const Validation a = validate(rows, one);
  const Validation b = validate(rows, many);
  EXPECT_EQ(reported, 8);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(a.rows[i].row.id, b.rows[i].row.id);
    EXPECT_EQ(a.rows[i].prediction.time.iteration_s, b.rows[i].prediction.time.iteration_s);
    EXPECT_EQ(a.rows[i].predicted_peak_gib, b.rows[i].predicted_peak_gib);
  }
  EXPECT_EQ(a.all.time.mape, b.all.time.mape);
}

TEST(Validation, AppliesOverridesToEveryRow) {
  ValidationOptions slower;
  slower.overrides = {"cluster.nic_efficiency=0.5"};
  const std::vector<LedgerRow> rows{shipped_row("m017"), shipped_row("m023")};
  const Validation before = validate(rows);
  const Validation after = validate(rows, slower);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GT(after.rows[i].prediction.time.iteration_s,
              1.2 * before.rows[i].prediction.time.iteration_s);
  }
  slower.overrides = {"cluster.nic_speed=1"};
  EXPECT_THROW(validate(rows, slower), Error);
}

TEST(Validation, OfNothingIsEmpty) {
  const Validation result = validate({});
  EXPECT_EQ(result.all.time.n, 0);
  EXPECT_EQ(result.all.predicted, 0);
}

ValidatedRow row(const std::string& id, double measured_s, double predicted_s) {
  ValidatedRow row;
  row.row.id = id;
  row.row.source = "somebody";
  row.row.model.name = "7B";
  row.row.gpu = "h100-80g";
  row.row.plan.gpus = 64;
  row.row.plan.seq_len = 4096;
  row.row.iteration_s = measured_s;
  row.prediction.time.iteration_s = predicted_s;
  row.time_error = predicted_s / measured_s - 1;
  return row;
}

Validation of(std::vector<ValidatedRow> rows) {
  Validation validation;
  validation.rows = std::move(rows);
  return validation;
}

TEST(ChoiceScore, LosesWhatTheFirstChoiceTookMore) {
  const ChoiceScore score = score_choices(
      of({row("a", 1.0, 2.2), row("b", 1.1, 2.0), row("c", 2.0, 4.0), row("d", 1.3, 3.0)}));
  ASSERT_EQ(score.groups.size(), 1U);
  const ChoiceGroup& group = score.groups.front();
  EXPECT_EQ(group.layouts, 4);
  EXPECT_EQ(group.chosen, "b");
  EXPECT_EQ(group.best, "a");
  EXPECT_NEAR(group.regret, 0.1, 1e-12);
  EXPECT_NEAR(group.random_regret, (0 + 0.1 + 1.0 + 0.3) / 4, 1e-12);
  EXPECT_NEAR(group.kendall_tau, (5 - 1) / 6.0, 1e-12);  // of six pairs one is the wrong way round
  EXPECT_DOUBLE_EQ(score.regret_mean, group.regret);
  EXPECT_DOUBLE_EQ(score.regret_worst, group.regret);
}

TEST(ChoiceScore, OppositeOrdersHaveMinusOne) {
  const ChoiceScore score = score_choices(of({row("a", 1, 3), row("b", 2, 2), row("c", 3, 1)}));
  ASSERT_EQ(score.groups.size(), 1U);
  EXPECT_DOUBLE_EQ(score.kendall_tau, -1);
  EXPECT_DOUBLE_EQ(score.regret_worst, 2);
}

TEST(ChoiceScore, ComparesOnlyWhatSomebodyCouldHaveChosen) {
  ValidatedRow other_batch = row("b", 0.5, 0.5);
  other_batch.row.plan.grad_accum = 2;
  ValidatedRow other_cluster = row("c", 0.5, 0.4);
  other_cluster.row.plan.gpus = 128;
  ValidatedRow other_release = row("d", 0.5, 0.3);
  other_release.row.version = "next";
  ValidatedRow doubtful = row("e", 0.5, 0.2);
  doubtful.row.suspect = "contradicted by a";
  EXPECT_TRUE(
      score_choices(of({row("a", 1, 1), other_batch, other_cluster, other_release, doubtful}))
          .groups.empty());
}

// Two sequences of one rank, or one sequence of twice as many micro-batches, are the same batch.
TEST(ChoiceScore, BatchesAreCountedOverAllRanks) {
  ValidatedRow one = row("a", 1, 1), other = row("b", 2, 2);
  one.row.plan.micro_batch = 2;
  other.row.plan.parallel.tp = 2;
  other.row.plan.grad_accum = 4;
  const ChoiceScore score = score_choices(of({one, other}));
  ASSERT_EQ(score.groups.size(), 1U);
  EXPECT_EQ(score.groups.front().sequences, 128);
}

}  // namespace

// Guards sim/score/validation.h: which release is newest, and what its runs' errors are.

namespace {

ValidatedRow run_of(const std::string& id, const std::string& stack, const std::string& software,
                    double error) {
  ValidatedRow run;
  run.row.id = id;
  run.row.source = "somebody";
  run.row.plan.stack = stack;
  run.row.software = software;
  run.time_error = error;
  return run;
}

TEST(FrameworkScore, PutsTheNewestReleaseFirst) {
  Validation validation;
  validation.rows = {run_of("a", "old", "2021", 0.5), run_of("b", "undated", "", 0.25),
                     run_of("c", "new", "24.07", -0.125), run_of("d", "new", "26.02", 0.5),
                     run_of("e", "new", "26.11", 0.25)};
  validation.rows[3].inside_interval = false;
  ValidatedRow suspect = run_of("f", "new", "27.01", 9);
  suspect.row.suspect = "another preset contradicts it";
  ValidatedRow skipped = run_of("g", "new", "27.01", 9);
  skipped.skipped = "its GPU is not known";
  ValidatedRow untimed = run_of("h", "new", "27.01", 9);
  untimed.time_error.reset();
  validation.rows.insert(validation.rows.end(), {suspect, skipped, untimed});
  profiles::HeldOutRun held_out;
  held_out.id = "c";
  held_out.source = "somebody";
  held_out.log_error_source_out = std::log(0.75);
  profiles::HeldOutRun other = held_out;
  other.source = "somebody else";
  other.id = "d";

  const auto scores =
      score_frameworks(validation, std::vector<profiles::HeldOutRun>{held_out, other});
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_EQ(scores[0].framework, "new");
  EXPECT_EQ(scores[1].framework, "old");
  EXPECT_EQ(scores[2].framework, "undated");
  EXPECT_EQ(scores[2].all.year, 0);
  const ReleaseScore& all = scores[0].all;
  EXPECT_THAT(all.releases, ElementsAre("26.11", "26.02", "24.07"));
  EXPECT_EQ(all.year, 2026);
  EXPECT_EQ(all.time.n, 3);
  EXPECT_DOUBLE_EQ(all.time.mape, (0.125 + 0.5 + 0.25) / 3);
  EXPECT_EQ(all.inside_interval, 2);
  EXPECT_EQ(all.source_left_out.n, 1);
  EXPECT_DOUBLE_EQ(all.source_left_out.mape, 0.25);
  ASSERT_EQ(scores[0].years.size(), 2U);
  EXPECT_EQ(scores[0].years[0].year, 2026);
  EXPECT_THAT(scores[0].years[0].releases, ElementsAre("26.11", "26.02"));
  EXPECT_EQ(scores[0].years[0].inside_interval, 1);
  EXPECT_EQ(scores[0].years[0].source_left_out.n, 0);
  EXPECT_EQ(scores[0].years[1].year, 2024);
  EXPECT_EQ(scores[0].years[1].source_left_out.n, 1);
}

TEST(FrameworkScore, CallsAFrameworkAsTheTableDoes) {
  Validation validation;
  validation.rows = {run_of("a", "megatron-core", "2023", 0.5)};
  validation.rows[0].row.stack_called = "megatron-lm";
  EXPECT_EQ(score_frameworks(validation, {})[0].framework, "megatron-lm");
}

/// Backward over `layers` units, two kernels a layer, as a schedule of one block.
Schedule backward_of(std::int64_t layers, std::int32_t micro_steps) {
  Schedule schedule;
  schedule.streams = {{.name = "compute"}};
  Op op;
  op.phase = Phase::kBackward;
  op.work.kind = WorkKind::kGemm;
  schedule.ops = {op, op};
  schedule.blocks = {{.op_count = 2,
                      .first_unit = static_cast<std::int32_t>(layers),
                      .unit_step = -1,
                      .repeats = static_cast<std::int32_t>(layers),
                      .phase = Phase::kBackward}};
  schedule.sections = {{.block_count = 1, .repeats = micro_steps}};
  schedule.layers = layers;
  return schedule;
}

// Kernels of 3 and 4 ns with a gap of 2 ns after every layer make a period of 9 ns, whatever the
// first micro-batch did.
TEST(LayerPeriod, IsTheDistanceBetweenNeighboursInTheLastMicroStep) {
  const Schedule schedule = backward_of(8, 2);
  Timeline timeline;
  Nanoseconds now = 0;
  for (OpId id = 0; id < 32; ++id) {
    const bool first = id % 2 == 0;
    const Nanoseconds length = first ? 3 : 4;
    timeline.spans.push_back({.id = id, .begin_ns = now, .end_ns = now + length});
    now += length + (first ? 0 : 2) + (id < 16 ? 50 : 0);
  }
  EXPECT_NEAR(backward_layer_period_s(schedule, timeline), 9e-9, 1e-15);
}

TEST(LayerPeriod, OfAShallowModelIsZero) {
  EXPECT_EQ(backward_layer_period_s(backward_of(1, 1), {}), 0);
}

// The two published pictures: 52 ms for YaFSDP and 74 ms for FSDP.
TEST(LayerPeriod, OfThePublishedTimelinesIsWithinSixPercent) {
  const auto table = CsvTable::load(profiles::data_dir() / "published" / "layer_periods.csv");
  const std::vector<LayerPeriod> periods = predict_layer_periods(table);
  ASSERT_EQ(periods.size(), 2U);
  for (const LayerPeriod& period : periods) {
    EXPECT_LT(std::abs(period.predicted_s / period.measured_s - 1), 0.06) << period.row.id;
  }
}

TEST(LayerPeriod, NeedsItsColumn) {
  const auto ledger = CsvTable::load(profiles::shipped_ledger());
  EXPECT_THROW(predict_layer_periods(ledger), Error);
}

}  // namespace

}  // namespace shardwright::sim
