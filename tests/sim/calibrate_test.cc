// SPDX-License-Identifier: Apache-2.0
// Guards the whole of calibration: profiles that predict what was measured, intervals that shrink
// and still cover, merging, drift.
#include "sim/calibrate/calibrate.h"

#include "sim/calibrate/rows.h"
#include "sim/calibrate/stack_from_trace.h"
#include "tests/sim/prediction.h"
#include "tests/sim/synthetic_machine.h"
#include "tests/support/parameter_name.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

using profiles::CostGroup;
using profiles::Observation;
using profiles::Profile;

Model small_model() {
  Model model = shardwright::testing::tiny_llama();
  model.layers = 8;
  model.hidden = 2048;
  model.ffn = 5632;
  model.heads = model.kv_heads = 16;
  model.head_dim = 128;
  model.vocab = 32000;
  model.max_positions = 8192;
  return model;
}

Plan small_plan(std::int64_t seq_len, std::int64_t micro_batch) {
  Plan plan;
  plan.strategy = Strategy::kYafsdp;
  plan.gpus = 8;
  plan.seq_len = seq_len;
  plan.micro_batch = micro_batch;
  plan.ckpt_layers = 0;
  plan.stack = "native";
  return plan;
}

/// Every operation of a step of the plan, once.
std::vector<Observation> operations_of(const Profile& profile, const Plan& plan) {
  Predictor predictor(small_model(), profile);
  PredictOptions options;
  options.reserved = false;
  predictor.predict(plan, options);
  std::vector<Observation> list;
  for (const Op& op : predictor.program().stages.front().ops) {
    const Work& work = op.work;
    const bool works = work.kind == WorkKind::kGemm || work.kind == WorkKind::kAttention ||
                       work.kind == WorkKind::kCollective ||
                       (work.kind == WorkKind::kMemory && work.bytes > 0 && work.kernels > 0);
    if (!works) continue;
    Observation o;
    o.op = op.kind;
    o.phase = op.phase;
    o.work = work;
    if (work.kind == WorkKind::kCollective) o.ranks = 8;
    list.push_back(o);
  }
  return list;
}

/// What somebody measures of an unknown machine: steps of two plans, and collectives by size.
std::vector<Observation> design(const Profile& profile) {
  std::vector<Observation> list = operations_of(profile, small_plan(2048, 2));
  for (const Observation& o : operations_of(profile, small_plan(512, 1))) list.push_back(o);
  for (const Observation& o : operations_of(profile, small_plan(4096, 4))) list.push_back(o);
  for (std::int64_t bytes = 1 << 16; bytes <= 1 << 30; bytes *= 4) {
    list.push_back(synthetic::collective(OpKind::kAllGather, bytes, 8));
    list.push_back(synthetic::collective(OpKind::kReduceScatter, bytes, 8));
  }
  for (int i = 0; i < 4; ++i) {
    list.push_back(synthetic::launch(Phase::kForward));
    list.push_back(synthetic::launch(Phase::kBackward));
    list.push_back(synthetic::launch(Phase::kPrepare, 0));
  }
  return list;
}

Profile unknown_machine(const Profile& base, std::mt19937& random) {
  Profile truth = base;
  for (const CostGroup group : {CostGroup::kProducts, CostGroup::kAttention, CostGroup::kMemory,
                                CostGroup::kCollectives, CostGroup::kHost}) {
    truth = synthetic::moved(truth, group, 0.5, random);
  }
  return truth;
}

double step_s(const Profile& profile, const Plan& plan) {
  PredictOptions options;
  options.reserved = false;
  return predict(small_model(), profile, plan, options).time.iteration_s;
}

// Plans of other sizes than those that were measured: the data of the fit are not in the test.
TEST(Calibrate, PredictsOtherPlansWithinIntervalsThatHaveShrunk) {
  const Profile base = profiles::load_profile("dgx-h100", "native");
  int inside = 0, count = 0;
  double error = 0, error_before = 0, width = 0, width_before = 0;
  for (unsigned trial = 0; trial < 12; ++trial) {
    std::mt19937 random(100 + trial);
    const Profile truth = unknown_machine(base, random);
    const auto rows = rows_of(synthetic::timed(truth, design(base), 4, random)).rows;
    CalibrationResult result = calibrate(base, rows);
    for (const auto& [seq_len, micro_batch] :
         {std::pair{1024, 1}, {1024, 4}, {3072, 1}, {8192, 1}}) {
      const Plan plan = small_plan(seq_len, micro_batch);
      const double truly = step_s(truth, plan);
      PredictOptions options;
      options.reserved = false;
      const TimePrediction after = predict(small_model(), result.profile, plan, options).time;
      const TimePrediction before = predict(small_model(), base, plan, options).time;
      inside += truly >= after.interval_s[0] && truly <= after.interval_s[1] ? 1 : 0;
      ++count;
      error += std::abs(after.iteration_s / truly - 1);
      error_before += std::abs(before.iteration_s / truly - 1);
      width += std::log(after.interval_s[1] / after.interval_s[0]) / 2;
      width_before += std::log(before.interval_s[1] / before.interval_s[0]) / 2;
    }
  }
  EXPECT_GE(inside, static_cast<int>(0.9 * count) - 3);  // 43 of 48, less a deviation and a half
  EXPECT_LT(error / count, 0.03);
  EXPECT_GT(error_before / count, 0.05);
  EXPECT_LT(width, 0.6 * width_before);
}

TEST(Calibrate, KeepsMeasuredProductsAndUsesThem) {
  const Profile base = profiles::load_profile("dgx-h100", "native");
  std::mt19937 random(2);
  auto set = synthetic::timed(base, {synthetic::product(3000, 5000, 7000)}, 5, random, {0, 0, 0});
  for (Observation& o : set.observations) o.seconds *= 1.7;
  const CalibrationResult result = calibrate(base, rows_of(set).rows);
  ASSERT_EQ(result.products.size(), 1u);
  const Work work = set.observations.front().work;
  const double was = kernel_time_s(kernel_costs(base), work);
  const double is = kernel_time_s(kernel_costs(result.profile), work);
  EXPECT_NEAR(is / was, 1.7, 1e-4);
  Sharing sharing;
  sharing.channels = 32;
  EXPECT_NEAR(kernel_time_s(kernel_costs(result.profile), work, sharing) /
                  kernel_time_s(kernel_costs(base), work, sharing),
              1.7, 0.01);  // what sharing costs follows from the formula, which has changed
}

TEST(Calibrate, KeepsLayoutsOfAProductApart) {
  const Profile base = profiles::load_profile("cpu-cores", "native");
  const auto of_kind = [](OpKind op, double seconds) {
    Observation o = synthetic::product(88, 128, 128);
    o.op = op;
    o.work.layout = layout_of(op);
    o.work.dtype_bytes = 4;
    o.seconds = seconds;
    return o;
  };
  profiles::ObservationSet set;
  for (int i = 0; i < 5; ++i) {
    set.observations.push_back(of_kind(OpKind::kUpProjection, 3e-5));
    set.observations.push_back(of_kind(OpKind::kWeightGradient, 4e-5));
  }
  KernelCosts costs = kernel_costs(calibrate(base, rows_of(set).rows).profile);
  const auto seconds = [&](OpKind op) { return kernel_time_s(costs, of_kind(op, 1).work); };
  EXPECT_NEAR(seconds(OpKind::kUpProjection), 3e-5, 1e-10);
  EXPECT_NEAR(seconds(OpKind::kWeightGradient), 4e-5, 1e-10);
  const double not_timed = seconds(OpKind::kInputGradient);
  costs.measured.clear();
  EXPECT_EQ(seconds(OpKind::kInputGradient), not_timed) << "by the formula";
}

TEST(Calibrate, HostCostsAreMeans) {
  const Profile base = profiles::load_profile("dgx-h100", "native");
  std::mt19937 random(4);
  std::exponential_distribution<double> gap(1 / 7e-6);
  std::vector<profiles::MeasuredRow> rows;
  int covered = 0;
  for (int trial = 0; trial < 200; ++trial) {
    profiles::ObservationSet set;
    for (int i = 0; i < 200; ++i) {
      set.observations.push_back(synthetic::launch(Phase::kBackward));
      set.observations.back().seconds = gap(random);
    }
    EditableProfile profile(base);
    const GroupFit fit = fit_host(profile, rows_of(set).rows);
    for (const FittedValue& value : not_empty(fit.values)) {
      if (value.path == "stack.host.backward_launch_s") {
        EXPECT_TRUE(value.determined);
        covered += value.low <= 7e-6 && 7e-6 <= value.high ? 1 : 0;
      } else {
        EXPECT_EQ(value.after, value.before) << value.path;
      }
    }
  }
  EXPECT_GE(covered, 182);  // of 200: 95 % less three deviations
}

// Beside a collective the same kernel is slower; the ratio says by how much, whatever it takes
// alone.
TEST(Calibrate, ContentionComesFromPairsOfTheSameOperation) {
  const Profile base = profiles::load_profile("dgx-h100", "native");
  EditableProfile truth(base);
  *truth.find("cost.contention.kernels") = 1.25;
  std::vector<Observation> list;
  for (const std::int64_t n : {2048, 3072, 4096, 6144}) {
    list.push_back(synthetic::product(4096, n, 4096));
    list.push_back(list.back());
    list.back().contended = 0.8;
  }
  std::mt19937 random(6);
  const auto rows = rows_of(synthetic::timed(truth.profile(), list, 30, random)).rows;
  const CalibrationResult result = calibrate(base, rows);
  for (const GroupFit& fit : not_empty(result.groups)) {
    if (fit.group != CostGroup::kContention) continue;
    EXPECT_EQ(fit.errors.rows, 4);
    EXPECT_TRUE(fit.values[0].determined);
    EXPECT_LT(fit.values[0].low, 1.25);
    EXPECT_GT(fit.values[0].high, 1.25);
  }
  // Without the pairs there is nothing to compare.
  std::vector<profiles::MeasuredRow> contended;
  std::ranges::copy_if(rows, std::back_inserter(contended),
                       [](const auto& row) { return row.operation.contended > 0; });
  EXPECT_TRUE(targets_of(contended, CostGroup::kContention).empty());
}

TEST(Calibrate, MergingIsFittingToAll) {
  const Profile base = profiles::load_profile("dgx-h100", "native");
  std::mt19937 random(8);
  const Profile truth = unknown_machine(base, random);
  const auto all = design(base);
  const std::vector<Observation> half(all.begin(), all.begin() + static_cast<long>(all.size() / 2));
  const std::vector<Observation> rest(all.begin() + static_cast<long>(all.size() / 2), all.end());
  const auto one = rows_of(synthetic::timed(truth, half, 4, random)).rows;
  const auto two = rows_of(synthetic::timed(truth, rest, 4, random)).rows;
  auto both = one;
  both.insert(both.end(), two.begin(), two.end());
  const auto rows = merged(both);
  auto twice = rows;
  twice.insert(twice.end(), rows.begin(), rows.end());
  const auto doubled = merged(twice);
  ASSERT_EQ(doubled.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(doubled[i].count, 2 * rows[i].count);
    EXPECT_NEAR(doubled[i].operation.seconds / rows[i].operation.seconds, 1, 1e-12);
  }
  const CalibrationResult result = calibrate(base, rows);
  const double error = std::abs(
      step_s(result.profile, small_plan(2048, 2)) / step_s(truth, small_plan(2048, 2)) - 1);
  EXPECT_LT(error, 0.03);
}

TEST(Drift, ShowsAChangeAndOnlyThen) {
  const Profile base = profiles::load_profile("dgx-h100", "native");
  std::mt19937 random(9);
  const auto all = design(base);
  const auto rows = rows_of(synthetic::timed(base, all, 5, random)).rows;
  const CalibrationResult result = calibrate(base, rows);
  profiles::Calibration record = record_of(result, "native", 0.9);
  record.sources.resize(1);
  record.sources[0].gpu = "NVIDIA H100";
  int alarms = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const auto again = rows_of(synthetic::timed(base, all, 5, random)).rows;
    alarms += drift_of(result.profile, record, again, record.sources).any() ? 1 : 0;
  }
  EXPECT_EQ(alarms, 0);
  EditableProfile slower(base);
  *slower.find("cost.gemm.e") *= 0.9;  // clocks fell
  const auto now = rows_of(synthetic::timed(slower.profile(), all, 5, random)).rows;
  auto sources = record.sources;
  sources[0].gpu = "NVIDIA H200";
  const Drift drift = drift_of(result.profile, record, now, sources);
  ASSERT_EQ(drift.changes.size(), 1u);
  EXPECT_THAT(drift.changes[0], HasSubstr("NVIDIA H200, not NVIDIA H100"));
  for (const GroupDrift& group : not_empty(drift.groups)) {
    EXPECT_EQ(group.drifted, group.group == CostGroup::kProducts) << name_of(group.group);
  }
}

}  // namespace
}  // namespace shardwright::sim
