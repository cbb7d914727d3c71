// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/machine/execution.h"
#include "cli/machine/host_profile.h"
#include "cli/measure/measure_model.h"
#include "cli/measure/measuring_site.h"
#include "cli/render/measured/calibration.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_file.h"
#include "sim/calibrate/calibration_files.h"
#include "sim/calibrate/rows.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

class MeasureVerb : public Verb {
 public:
  MeasureVerb()
      : Verb("measure", "times products, attention, copies and collectives on this machine") {}

  void declare_flags(Command& command) override {
    command
        .add("--model", model_,
             "whose shapes are timed: a built-in model, or a Hugging Face config.json or "
             "folder (default: a tiny Llama)")
        .type_name("NAME|PATH");
    command.add("--device", device_, "what is timed (default: auto)").type_name("auto|host|cuda");
    command.add_file("--out", out_, "the profile to write (default: my-cpu.json or my-gpu.json)");
    command
        .add("--base", base_,
             "the cluster that the profile starts from (default on the processor: host)")
        .type_name("NAME|PATH");
    command.add("--threads", threads_, "processor threads (default: one a core)", {1, 4096});
    command.add("--quick", quick_, "fewer shapes and steps: some seconds");
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    const std::unique_ptr<MeasuringSite> site = chosen_site();
    const TraceOrigin origin = site->origin();
    if (out_.empty()) out_ = origin.device == "host" ? "my-cpu.json" : "my-gpu.json";
    const auto models = profiles::data_dir() / "models";
    if (model_.empty()) model_ = (profiles::data_dir() / "examples" / "tiny-llama.json").string();
    const Model model = load_model(models, model_);

    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Scene> scenes = scenes_of(model, *site, quick_);
    Progress progress(context.err, "measure", static_cast<std::int64_t>(scenes.size()));
    Measured measured = measure_model(model, scenes, *site, [&](std::size_t scene) {
      progress.update(static_cast<std::int64_t>(scene), describe(scenes[scene]));
    });
    const profiles::ObservationSet& set = measured.observations;
    progress.finish();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

    sim::CalibratedFile file;
    file.base = base_.empty() ? kHostCluster : base_;
    file.stack = "native";
    file.date = origin.date;
    file.sources = set.sources;
    file.product_choices = std::move(measured.products);
    profiles::Profile base = profiles::load_profile(file.base, file.stack);
    file.facts = sim::adopt_processor(set.sources, file.date, base);
    const sim::CalibrationResult result =
        sim::calibrate(base, sim::merged(sim::rows_of(set).rows), {file.level});
    sim::write_calibrated(out_, file, result);
    if (json_) {
      print_json(origin, result, set, file.product_choices, seconds);
    } else {
      print_text(context, origin, result, set, file.product_choices, seconds);
    }
    return ExitCode::kDone;
  }

 private:
  /// The device that is wished and there.
  std::unique_ptr<MeasuringSite> chosen_site() const {
    if (device_ != "auto" && device_ != "host" && device_ != "cuda") {
      throw Error(fmt::format("--device is '{}', expected auto, host or cuda", device_));
    }
    ExecutionOffer offer = execution_offer();
    if (choose_device(device_, offer).kind == DeviceKind::kHost) {
      return std::make_unique<HostSite>(static_cast<int>(threads_.value_or(0)));
    }
    if (base_.empty()) {
      throw Error(
          fmt::format("--base is missing, expected the cluster whose GPU the {} is, for example "
                      "dgx-h100; --device host measures the processor",
                      offer.gpus.front().name),
          ExitCode::kUsage);
    }
    return std::make_unique<GpuSite>(std::move(offer.gpus));
  }

  void print_text(const Context& context, const TraceOrigin& origin,
                  const sim::CalibrationResult& result, const profiles::ObservationSet& set,
                  const ProductChoices& products, double seconds) const {
    fmt::print(results(), "{} with {} {}: {} timings in {}\n", origin.device_name, origin.units,
               origin.device == "host" ? "threads" : "multiprocessors",
               thousands(set.observations.size()), quantity(seconds, "s"));
    Table table({"group", right("operations"), right("timings"), right("error before"),
                 right("after"), right("held out")});
    for (const sim::GroupFit& group : result.groups) {
      const profiles::CalibratedGroup& errors = group.errors;
      if (errors.rows == 0) continue;
      table.add_row({profiles::name_of(group.group), errors.rows, thousands(errors.observations),
                     median_error(errors.before), median_error(errors.in_sample),
                     median_error(errors.held_out)});
    }
    fmt::print(results(), "{}", table.render(context.out));
    if (!products.choices.empty()) {
      fmt::print(results(), "The fastest algorithm of {} products, for run to take\n",
                 thousands(products.choices.size()));
    }
    fmt::print(results(),
               "Median errors of single operations. The profile is in {}; use it as --cluster {}\n",
               out_, out_);
  }

  void print_json(const TraceOrigin& origin, const sim::CalibrationResult& result,
                  const profiles::ObservationSet& set, const ProductChoices& products,
                  double seconds) const {
    Json document{{"schema", "shardwright.measurement/1.1"},
                  {"device", origin.device},
                  {"device_name", origin.device_name},
                  {"units", origin.units},
                  {"seconds", seconds},
                  {"observations", set.observations.size()},
                  {"product_choices", products.choices.size()},
                  {"out", out_},
                  {"groups", Json::array()}};
    for (const sim::GroupFit& group : result.groups) {
      const profiles::CalibratedGroup& errors = group.errors;
      document["groups"].push_back({{"group", profiles::name_of(group.group)},
                                    {"operations", errors.rows},
                                    {"timings", errors.observations},
                                    {"median_error_before", errors.before.median},
                                    {"median_error", errors.in_sample.median},
                                    {"median_error_held_out", errors.held_out.median}});
    }
    fmt::print(results(), "{}\n", json_text(document));
  }

  std::string model_, device_ = "auto", out_, base_;
  std::optional<std::int64_t> threads_;
  bool quick_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_measure_verb() {
  return std::make_unique<MeasureVerb>();
}

}  // namespace shardwright::cli
