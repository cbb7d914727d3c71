// SPDX-License-Identifier: Apache-2.0
#include "cli/measure/measure_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/render/text/quantity.h"
#include "exec/executor.h"
#include "exec/train/metrics.h"
#include "kernels/random.h"
#include "profiles/stack_file.h"
#include "sim/calibrate/calibration_files.h"
#include "sim/core/base/error.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"
#include "sim/trace/observations.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kLayers = 2;
constexpr int kWarmUpSteps = 2;
constexpr double kMostStepSeconds = 3;
constexpr double kShareOfMemory = 0.8;

Plan plan_of(const MeasuringSite& site, int ranks, std::int64_t micro_batch, std::int64_t seq_len) {
  Plan plan;
  plan.strategy = ranks > 1 ? Strategy::kYafsdp : Strategy::kSingle;
  plan.gpus = ranks;
  plan.micro_batch = micro_batch;
  plan.seq_len = seq_len;
  plan.param_dtype = site.param_dtype();
  return plan;
}

Model shortened(Model model) {
  model.layers = std::min(model.layers, kLayers);
  return model;
}

Schedule lowered(const Model& model, const Plan& plan) {
  check_plan(plan, model, plan.gpus);
  return sim::executed_step(model, plan, profiles::load_stack("native").stack, plan.gpus)
      .stages.front();
}

bool fits(const Model& model, const Plan& plan, const MeasuringSite& site) {
  const std::int64_t ranks = plan.gpus;
  if (site.seconds(sim::model_flops(model, plan) * static_cast<double>(ranks)) > kMostStepSeconds) {
    return false;
  }
  const Bytes bytes = exec::StepMemory::planned_bytes(lowered(model, plan)) * ranks;
  return static_cast<double>(bytes) <= kShareOfMemory * static_cast<double>(site.memory_bytes());
}

exec::Batch random_batch(const Model& model, const Plan& plan, int rank, int step) {
  const kernels::RandomStream random{static_cast<std::uint64_t>(step) + 1,
                                     kernels::RandomSite::kSynthetic,
                                     static_cast<std::uint32_t>(rank)};
  exec::Batch batch;
  const std::int64_t tokens = plan.micro_batch * plan.grad_accum * plan.seq_len;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto token = static_cast<std::int32_t>(
        random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(model.vocab)));
    batch.tokens.push_back(token);
    batch.targets.push_back(token);
  }
  return batch;
}

void run_scene(const Model& model, const Scene& scene, MeasuringSite& site, Measured& measured) {
  const Plan& plan = scene.plan;
  const Schedule schedule = lowered(model, plan);
  profiles::ObservationSet set;
  site.run(
      static_cast<int>(plan.gpus), [&](int rank, exec::Device& device, exec::RankGroups groups) {
        exec::ExecutorOptions options;
        options.trace = true;
        exec::Executor executor(model, plan, schedule, device, std::move(groups), options);
        const ProductChoices chosen =
            site.choose_products(executor, random_batch(model, plan, rank, 0), measured.products);
        executor.initialize(1);
        Timeline all;
        std::vector<double> step_s;
        for (int step = 1; step <= kWarmUpSteps + scene.steps; ++step) {
          exec::StepOptions step_options;
          step_options.adamw.step = step;
          step_options.adamw.lr = 1e-4F;
          const exec::StepResult done =
              executor.step(random_batch(model, plan, rank, step), step_options);
          if (step <= kWarmUpSteps) continue;
          Timeline timeline = exec::gather_timeline(executor.world(), executor.timeline());
          step_s.push_back(done.seconds);
          all.spans.insert(all.spans.end(), timeline.spans.begin(), timeline.spans.end());
          all.host.insert(all.host.end(), timeline.host.begin(), timeline.host.end());
        }
        if (rank != 0) return;
        sim::StepTrace trace = sim::step_trace_of({&schedule, 1}, std::move(all), describe(scene));
        trace.origin = site.origin();
        trace.origin.step_s = std::move(step_s);
        set = sim::observations_of(trace, {&schedule, 1}, plan.gpus);
        if (measured.products.choices.empty()) {
          measured.products = chosen;
        } else {
          measured.products.add(chosen);
        }
      });
  sim::append(measured.observations, std::move(set));
}

}  // namespace

ProductChoices MeasuringSite::choose_products(exec::Executor& /*executor*/,
                                              const exec::Batch& /*batch*/,
                                              const ProductChoices& /*known*/) {
  return {};
}

std::string describe(const Scene& scene) {
  return fmt::format("{}, {} x {} tokens", counted(scene.plan.gpus, "rank"), scene.plan.micro_batch,
                     scene.plan.seq_len);
}

std::vector<Scene> scenes_of(const Model& whole, const MeasuringSite& site, bool quick) {
  const Model model = shortened(whole);
  // Tokens of a sequence and sequences: small and large products, short and long attention.
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{128, 1}, {128, 4}, {256, 2}};
  if (!quick) {
    shapes.insert(shapes.end(), {{64, 2}, {256, 8}, {512, 2}, {1024, 2}, {2048, 1}, {4096, 1}});
    // Tokens of a step that fills a GPU.
    if (site.param_dtype() == DType::kBf16) shapes.insert(shapes.end(), {{4096, 2}, {8192, 1}});
  }
  std::vector<Scene> scenes;
  for (const int ranks : site.rank_counts()) {
    for (const auto& [seq_len, micro_batch] : shapes) {
      if (seq_len > model.max_positions) continue;
      const Scene scene{plan_of(site, ranks, micro_batch, seq_len), quick ? 4 : 8};
      if (fits(model, scene.plan, site)) scenes.push_back(scene);
    }
  }
  if (scenes.empty()) {
    const Scene least{plan_of(site, 1, 1, std::min<std::int64_t>(64, model.max_positions)), 2};
    if (exec::StepMemory::planned_bytes(lowered(model, least.plan)) > site.memory_bytes()) {
      throw Error(
          fmt::format("two layers of {} need more memory than this machine has, expected a "
                      "smaller model",
                      whole.name));
    }
    scenes.push_back(least);
  }
  return scenes;
}

Measured measure_model(Model model, const std::vector<Scene>& scenes, MeasuringSite& site,
                       const std::function<void(std::size_t)>& begun) {
  model = shortened(std::move(model));
  Measured measured;
  for (std::size_t i = 0; i < scenes.size(); ++i) {
    begun(i);
    run_scene(model, scenes[i], site, measured);
  }
  return measured;
}

}  // namespace shardwright::cli
