// SPDX-License-Identifier: Apache-2.0
// The algorithms of products: the fastest by the fake runtime's clock, one choice for all ranks,
// and never a clock within a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cli/measure/measure_model.h"
#include "exec/cuda/products.h"
#include "profiles/cluster_file.h"
#include "sim/core/base/error.h"
#include "sim/pipeline/step_program.h"
#include "tests/exec/training.h"
#include "tests/exec_cuda/fixture.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using cuda_on_cpu::Call;

/// A machine whose library offers algorithms that take so long, in nanoseconds.
void use_algorithms(std::vector<std::int64_t> product_ns) {
  cuda_on_cpu::FakeMachine machine;
  machine.seed = 1;
  machine.product_ns = std::move(product_ns);
  cuda_on_cpu::reset(machine);
}

std::vector<int> algorithms_of(const std::vector<Call>& log) {
  std::vector<int> used;
  for (const Call& call : log) {
    if (call.name == "cublasLtMatmul") used.push_back(call.algorithm);
  }
  return used;
}

bool looks_at_a_clock(const std::vector<Call>& log) {
  return std::any_of(log.begin(), log.end(),
                     [](const Call& call) { return call.name == "cudaEventElapsedTime"; });
}

/// A product with room for its operands, which are zeros.
struct OneProduct {
  CudaDevice device;
  StreamId stream = device.make_stream("compute", 0);
  static constexpr Bytes kBytes = 4LL * 4 * 64;
  std::unique_ptr<Allocation> memory = device.allocate(kBytes);
  cuda::Product product;

  OneProduct() {
    auto* data = static_cast<float*>(memory->data());
    device.zero(stream, data, kBytes);
    const auto at = [&](std::int64_t i) { return Matrix(data + 64 * i, DType::kFp32, 8, 8); };
    product = {cuda::ProductForm::kNT, at(0), at(1), {}, nullptr, at(2)};
  }
  std::int32_t choice(const std::vector<ProductChoice>& known = {}, bool times = true) {
    cuda::Products products;
    products.use(known);
    products.time_choices(times);
    products.run(product, nullptr, 0, device.stream(stream));
    device.synchronize();
    return products.choices().at(0).place;
  }
};

TEST(ProductChoices, TakesTheFastestWhereThatIsWorthwhile) {
  for (const auto& [product_ns, place] : std::vector<std::pair<std::vector<std::int64_t>, int>>{
           {{50'000, 90'000, 10'000}, 2},
           {{50'000, 20'000, 20'000}, 1},
           {{10'000, 90'000, 50'000}, 0},
           {{100'000, 99'900, 100'000}, 0}}) {  // a thousandth is noise
    use_algorithms(product_ns);
    OneProduct one;
    EXPECT_EQ(one.choice(), place);
    EXPECT_EQ(one.choice({}, false), 0) << "nobody asked for the time";
  }
}

// The library excludes algorithms where it is told less than what operands are aligned to.
TEST(ProductChoices, CountWithTheAlignmentThatOperandsHave) {
  use_algorithms({50'000, 90'000, 30'000, 10'000});
  OneProduct one;
  EXPECT_EQ(one.choice(), 3);
  one.product.out = Matrix(static_cast<float*>(one.product.out.data) + 4, DType::kFp32, 8, 7);
  one.product.b.rows = 7;
  EXPECT_EQ(one.choice(), 2) << "16 bytes beside a multiple of 256";
}

// What collectives hold is not theirs; a choice is of the multiprocessors that it was made for.
TEST(ProductChoices, LeavesTheMultiprocessorsThatOthersHold) {
  use_algorithms({50'000});
  OneProduct one;
  cuda::Products& products = one.device.products();
  const auto planned_for = [&](int held) {
    one.device.leave_multiprocessors(held);
    cuda_on_cpu::clear_log();
    products.run(one.product, nullptr, 0, one.device.stream(one.stream));
    std::vector<unsigned> asked;
    for (const cuda_on_cpu::Call& call : cuda_on_cpu::call_log()) {
      if (call.name == "cublasLtMatmulAlgoGetHeuristic") asked.push_back(call.grid.x);
    }
    return asked;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(planned_for(0), ElementsAre(0u)) << "all of them";
  EXPECT_THAT(planned_for(3), ElementsAre(1u)) << "of four";
  EXPECT_THAT(planned_for(64), ::testing::IsEmpty()) << "at least one, as before";
  EXPECT_EQ(products.planned_shapes(), 2u);
  EXPECT_THAT(products.choices().at(1).product, ::testing::EndsWith(" on 1"));
  one.device.synchronize();
}

TEST(ProductChoices, TimesNoProductThatAChoiceNames) {
  use_algorithms({50'000, 90'000, 10'000});
  OneProduct one;
  cuda::Products products;
  products.time_choices(true);
  products.run(one.product, nullptr, 0, one.device.stream(one.stream));
  std::vector<ProductChoice> known = products.choices();
  // A task takes a microsecond itself, and so does the record behind four of them.
  EXPECT_NEAR(known.at(0).first_s, 51.25e-6, 1e-9);
  EXPECT_NEAR(known.at(0).seconds, 11.25e-6, 1e-9);
  known[0].place = 1;
  cuda_on_cpu::clear_log();
  EXPECT_EQ(one.choice(known), 1);
  EXPECT_FALSE(looks_at_a_clock(cuda_on_cpu::call_log()));
  // Of a library that offered more than this one does.
  known[0].place = 7;
  EXPECT_EQ(one.choice(known, false), 0);
}

/// What a training of two ranks used in its steps, after its ranks have agreed.
struct Agreed {
  std::vector<ProductChoices> of_ranks = std::vector<ProductChoices>(2);
  std::vector<Call> steps;
};

Agreed train_agreed(const std::vector<ProductChoices>& known, int micro_steps = 1) {
  Training training;
  training.plan = tiny_plan(micro_steps > 1 ? Strategy::kZero1 : Strategy::kYafsdp, 2, micro_steps);
  training.plan.seq_len = 8;
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages.front();
  LocalWorld world(2, 2);
  Agreed agreed;
  world.run([&](int rank) {
    const auto device = naive_device();
    Executor executor(training.model, training.plan, schedule, *device, world.groups(rank, *device),
                      training.options);
    const Batch batch = batch_of(training, 1, rank);
    agreed.of_ranks[static_cast<std::size_t>(rank)] =
        cuda::agree_on_products(executor, *device, batch, "a GPU", known);
    executor.initialize(3);
    executor.world().barrier();
    if (rank == 0) cuda_on_cpu::clear_log();
    executor.world().barrier();
    executor.step(batch, step_options(training, 1));
    executor.world().barrier();
    if (rank == 0) agreed.steps = cuda_on_cpu::call_log();
    executor.world().barrier();
  });
  return agreed;
}

TEST(ProductChoices, AreEqualOnAllRanksAndMadeOutsideOfSteps) {
  use_algorithms({50'000, 90'000, 10'000});
  const Agreed agreed = train_agreed({});
  EXPECT_EQ(to_json(agreed.of_ranks[0]), to_json(agreed.of_ranks[1]));
  EXPECT_GT(agreed.of_ranks[0].choices.size(), 10u);
  EXPECT_THAT(algorithms_of(agreed.steps), ::testing::Each(2));
  EXPECT_FALSE(looks_at_a_clock(agreed.steps));
}

// Zeros take little power, and so a clock that is not that of a step.
TEST(ProductChoices, AreTimedOnNumbersLikeThoseOfAStep) {
  for (const int micro_steps : {1, 2}) {
    use_algorithms({50'000, 90'000, 10'000});
    const std::int64_t before = cuda_on_cpu::products_of_zeros();
    EXPECT_GT(train_agreed({}, micro_steps).of_ranks[0].choices.size(), 10u);
    EXPECT_EQ(cuda_on_cpu::products_of_zeros(), before);
  }
}

TEST(ProductChoices, OutliveTheRunWhereLibraryAndGpuAreTheSame) {
  use_algorithms({50'000, 90'000, 10'000});
  const ProductChoices first = train_agreed({}).of_ranks[0];
  const ProductChoices kept = product_choices_from(to_json(first), "products.json");
  EXPECT_EQ(to_json(kept), to_json(first));
  // Another clock changes nothing for who goes on, and everything for another library.
  use_algorithms({10'000, 90'000, 50'000});
  EXPECT_THAT(algorithms_of(train_agreed({kept}).steps), ::testing::Each(2));
  ProductChoices other = kept;
  other.release = "12.0.0";
  use_algorithms({10'000, 90'000, 50'000});
  EXPECT_THAT(algorithms_of(train_agreed({other}).steps), ::testing::Each(0));
  other = kept;
  other.gpu = "another GPU";
  use_algorithms({10'000, 90'000, 50'000});
  EXPECT_THAT(algorithms_of(train_agreed({other}).steps), ::testing::Each(0));
}

/// As measure writes them and run reads them.
ProductChoices through_a_cluster_file(const ProductChoices& choices) {
  profiles::ClusterFile file = profiles::load_cluster("dgx-h100");
  file.product_choices = choices;
  return profiles::parse_cluster(profiles::to_json(file), "my-gpu.json").product_choices;
}

TEST(ProductChoices, ComeFromTheProfileWhereTheRunHasNoneYet) {
  use_algorithms({50'000, 90'000, 10'000});
  const ProductChoices profile = through_a_cluster_file(train_agreed({}).of_ranks[0]);
  use_algorithms({10'000, 90'000, 50'000});
  const Agreed agreed = train_agreed({{}, profile});
  EXPECT_THAT(algorithms_of(agreed.steps), ::testing::Each(2));
  EXPECT_EQ(to_json(agreed.of_ranks[0]), to_json(profile));
  EXPECT_EQ(to_json(agreed.of_ranks[1]), to_json(profile));
  // What the run had before stays, and what nobody has named is timed.
  ProductChoices of_run = profile;
  of_run.choices.resize(of_run.choices.size() / 2);
  for (ProductChoice& choice : of_run.choices) choice.place = 1;
  ProductChoices half = profile;
  half.choices.pop_back();
  use_algorithms({10'000, 90'000, 50'000});
  const Agreed mixed = train_agreed({of_run, half});
  std::vector<std::int32_t> places;
  for (const ProductChoice& choice : mixed.of_ranks[1].choices) places.push_back(choice.place);
  std::vector<std::int32_t> expected(profile.choices.size(), 2);
  std::fill_n(expected.begin(), of_run.choices.size(), 1);
  expected.back() = 0;
  EXPECT_EQ(places, expected);
}

/// The emulated GPU as measure sees it.
class EmulatedSite final : public cli::MeasuringSite {
 public:
  TraceOrigin origin() const override {
    TraceOrigin origin;
    origin.device = "cuda";
    origin.device_name = "a GPU";
    origin.units = 132;
    origin.devices = 1;
    origin.date = "2026-11-22";
    return origin;
  }
  std::vector<int> rank_counts() const override { return {1}; }
  DType param_dtype() const override { return DType::kFp32; }
  double seconds(double flops) const override { return flops / 1e7; }
  Bytes memory_bytes() const override { return Bytes{1} << 30; }
  void run(int ranks, const Body& body) override {
    LocalWorld world(ranks, ranks);
    world.run([&](int rank) {
      const auto device = naive_device();
      body(rank, *device, world.groups(rank, *device));
    });
  }
  ProductChoices choose_products(Executor& executor, const Batch& batch,
                                 const ProductChoices& known) override {
    return cuda::agree_on_products(executor, dynamic_cast<CudaDevice&>(executor.device()), batch,
                                   "a GPU", std::span(&known, 1));
  }
};

// A profile that measure wrote on this GPU serves a run of the shapes that were measured: nothing
// is left to be timed, also in later micro-batches.
TEST(ProductChoices, OfMeasureServeARun) {
  use_algorithms({50'000, 90'000, 10'000});
  Training training;
  Plan plan = tiny_plan(Strategy::kSingle, 1);
  plan.seq_len = 8;
  EmulatedSite site;
  const cli::Measured measured =
      cli::measure_model(training.model, {{plan, 1}, {plan, 1}}, site, [](std::size_t) {});
  EXPECT_GT(measured.observations.observations.size(), 10u);
  const ProductChoices profile = through_a_cluster_file(measured.products);
  EXPECT_GT(profile.choices.size(), 10u);
  EXPECT_EQ(profile.gpu, "a GPU");
  for (const int micro_steps : {1, 2}) {
    use_algorithms({10'000, 90'000, 50'000});
    const Agreed agreed = train_agreed({profile}, micro_steps);
    EXPECT_THAT(algorithms_of(agreed.steps), ::testing::Each(2)) << micro_steps;
    EXPECT_EQ(to_json(agreed.of_ranks[0]), to_json(agreed.of_ranks[1]));
  }
}

Training short_training() {
  Training training;
  training.plan = tiny_plan(Strategy::kSingle, 1, 1);
  training.plan.seq_len = 8;
  training.steps = 2;
  training.make_device = [](int) { return naive_device(); };
  return training;
}

/// Steps whose products are timed on a machine with such a clock.
std::vector<TrainedStep> train_timed(std::vector<std::int64_t> product_ns) {
  Training training = short_training();
  training.prepare = [&](Executor& executor) {
    auto& device = dynamic_cast<CudaDevice&>(executor.device());
    cuda::agree_on_products(executor, device, batch_of(training, 1, 0), "a GPU", {});
    executor.initialize(3);
  };
  use_algorithms(std::move(product_ns));
  return train(training);
}

std::vector<TrainedStep> train_untimed(std::vector<std::int64_t> product_ns) {
  use_algorithms(std::move(product_ns));
  return train(short_training());
}

// Timing leaves nothing behind: where it ends at the library's first choice, the run has the bits
// of one that timed nothing.
TEST(ProductChoices, LeaveATrainingAsItWasWhereTheFirstIsTheFastest) {
  expect_same_training(train_untimed({}), train_timed({10'000, 90'000, 50'000}));
}

// What a clock chooses may add in another order: two runs whose bits are compared must not time.
TEST(ProductChoices, OfAnotherClockGiveOtherBitsAndTheFirstOnesDoNot) {
  const auto one = train_timed({10'000, 90'000, 50'000});
  const auto other = train_timed({50'000, 90'000, 10'000});
  EXPECT_NE(one.back().weights, other.back().weights);
  expect_same_training(train_untimed({10'000, 90'000, 50'000}),
                       train_untimed({50'000, 90'000, 10'000}));
}

TEST(ProductChoices, AreReadWithCare) {
  const std::string text =
      to_json(ProductChoices{"13.1.0", "a GPU", {{"NT 8x8x8", 2, 1e-5, 2e-5}}});
  EXPECT_EQ(product_choices_from(text, "f").choices.at(0).place, 2);
  std::string damaged = text;
  damaged.replace(damaged.find("\"algorithm\": 2"), 14, "\"algorithm\": 8");
  EXPECT_THAT([&] { product_choices_from(damaged, "products.json"); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("products.json")));
}

}  // namespace
}  // namespace shardwright::exec
