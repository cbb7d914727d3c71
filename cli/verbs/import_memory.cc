// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/config/smallest_change.h"
#include "cli/flags/plan_flags.h"
#include "cli/memory/seen_memory.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/verbs/verbs.h"
#include "sim/core/plan_json.h"
#include "sim/predict.h"
#include "sim/uncertainty/intervals.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string gib_words(Bytes bytes) {
  return fmt::format("{:.2f} GiB", gib(bytes));
}

/// What was seen beside what is predicted of the same plan.
struct Held {
  sim::Job job;
  sim::Prediction prediction;
  Bytes needed = 0;                   // seen, at least
  double excess = 1;                  // needed over predicted, at least 1
  Bytes capacity = 0;                 // of the device
  double headroom = 0;                // share of the memory that a fix leaves, as tune does
  std::optional<SmallestChange> fix;  // that would have fitted; none: none found, or it fits
  sim::MemoryVerdict fix_verdict = sim::MemoryVerdict::kDoesNotFit;
  bool fits = false;
};

class ImportMemoryVerb : public Verb {
 public:
  ImportMemoryVerb()
      : Verb("import-memory",
             "a memory snapshot or an out-of-memory message of PyTorch: what would have fitted") {}

  void declare_flags(Command& command) override {
    command
        .add("FILE", file_,
             "what torch.cuda.memory._dump_snapshot wrote, or a log with an out-of-memory message")
        .required();
    flags_.declare(command);
    command.at("--plan").description("the plan that ran; or give it as flags");
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    const SeenMemory seen = read_seen_memory(file_);
    std::optional<Held> held;
    if (flags_.plan_file || flags_.model || flags_.cluster) held = hold(seen);
    if (json_) {
      fmt::print(results(), "{}\n", json_text(document(seen, held)));
    } else {
      show(seen, held, context.out);
    }
    return ExitCode::kDone;
  }

 private:
  Held hold(const SeenMemory& seen) const {
    Held held;
    held.job = resolve(flags_);
    if (held.job.plans.size() != 1)
      throw Error("--strategy names several strategies, but import-memory takes one.");
    const Plan& plan = held.job.plans.front();
    held.prediction = sim::predict(held.job.model, held.job.profile, plan);
    const sim::MemoryPrediction& memory = held.prediction.memory;
    held.capacity = seen.capacity.value_or(memory.usable_bytes);
    // A snapshot knows nothing of what lies outside of PyTorch.
    const bool without_runtime = !seen.in_use && !(seen.capacity && seen.free);
    held.needed = seen.needed().value_or(0) + (without_runtime ? memory.runtime_bytes : 0);
    held.excess =
        std::max(1.0, static_cast<double>(held.needed) / static_cast<double>(memory.total_bytes));
    held.fits = held.needed <= held.capacity && !seen.refused;
    if (held.fits) return held;
    // Other plans are taken to need as much more than predicted as this one did.
    sim::Job smaller = held.job;
    Bytes& bytes = smaller.profile.cluster.gpu.memory_bytes;
    bytes = static_cast<Bytes>(static_cast<double>(bytes) * static_cast<double>(held.capacity) /
                               static_cast<double>(memory.usable_bytes) / held.excess);
    held.headroom = sim::asked_headroom(held.job.profile, plan.gpus);
    for (const sim::MemoryVerdict worst : {sim::MemoryVerdict::kFits, sim::MemoryVerdict::kTight}) {
      if (!held.fix) held.fix = smallest_change(smaller, plan, ConfigFormat::Layers::kAny, worst);
    }
    if (held.fix) held.fix_verdict = held.fix->prediction.memory.verdict;
    return held;
  }

  /// What the numbers alone say.
  static std::vector<std::string> advice(const SeenMemory& seen) {
    std::vector<std::string> sentences;
    if (seen.refused && seen.reserved && seen.allocated) {
      const Bytes unused = *seen.reserved - *seen.allocated;
      if (!seen.expandable && unused >= *seen.refused) {
        sentences.push_back(fmt::format(
            "{} lay reserved but unused, in pieces, when {} were asked for: with "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True this request would have fitted.",
            gib_words(unused), gib_words(*seen.refused)));
      } else {
        const Bytes free = seen.free.value_or(0) + (seen.expandable ? 0 : unused);
        sentences.push_back(fmt::format(
            "Even with every reserved byte in use, {} were missing: less has to be kept.",
            gib_words(std::max<Bytes>(0, *seen.refused - free))));
      }
    }
    return sentences;
  }

  /// What would have fitted, in the first sentence.
  void say_verdict(const Held& held, const std::function<void(const std::string&)>& say) const {
    if (held.fits) {
      say("It fitted.");
    } else if (held.fix) {
      std::vector<std::string> words;
      for (const KnobChange& change : held.fix->changes)
        words.push_back(fmt::format("{} {} -> {}", change.knob,
                                    change.from == "null" ? "not set" : change.from, change.to));
      const bool tight = held.fix_verdict == sim::MemoryVerdict::kTight;
      say(fmt::format(
          "This would have fitted: {}. Then {} of {} in all by prediction ({}), {:.0f} tokens/s "
          "per GPU instead of {:.0f}.",
          fmt::join(words, ", "), gib_words(held.fix->prediction.memory.total_bytes),
          gib_words(held.capacity),
          tight ? "tight: by the interval of memory it may fail"
                : fmt::format("{:.1f} % are kept free for what predictions miss",
                              100 * held.headroom),
          held.fix->prediction.time.tokens_per_gpu_s, held.prediction.time.tokens_per_gpu_s));
    } else {
      say("No change of one or two knobs would have fitted; shardwright tune searches all plans.");
    }
  }

  void show(const SeenMemory& seen, const std::optional<Held>& held, const Terminal& out) const {
    const auto say = [&](const std::string& text) {
      fmt::print(results(), "{}", paragraph(text, out));
    };
    if (held) say_verdict(*held, say);
    Table table({left(""), right("")});
    const auto add = [&](const char* what, const std::optional<Bytes>& bytes) {
      if (bytes) table.add_row({what, gib_words(*bytes)});
    };
    add("capacity of the GPU", seen.capacity);
    add("in use by the process", seen.in_use);
    add("peak allocated", seen.peak_allocated);
    add("reserved", seen.reserved);
    add("refused request", seen.refused);
    if (held) {
      table.add_row(
          {"predicted, allocated", gib_words(held->prediction.memory.peak_allocated_bytes)});
      table.add_row(
          {"predicted, reserved", gib_words(held->prediction.memory.peak_reserved_bytes)});
    }
    fmt::print(results(), "{}", table.render(out));
    for (const AllocationSite& site : seen.largest)
      say(fmt::format("{:>10}  {}", gib_words(site.bytes), site.where));
    for (const std::string& sentence : advice(seen)) say(sentence);
    if (!held) {
      say("Give the plan that ran (--plan, or --model, --cluster and what else it was) to learn "
          "what "
          "would have fitted.");
      return;
    }
    const Bytes predicted = held->prediction.memory.total_bytes;
    if (!held->fits && seen.refused && predicted > held->needed) {
      say(fmt::format(
          "The job failed before its peak: it held {} and asked for {} more, and {} are predicted "
          "for the whole step.",
          gib_words(held->needed - *seen.refused), gib_words(*seen.refused), gib_words(predicted)));
    }
    if (held->excess > 1) {
      say(
          fmt::format("It needed at least {}, {:.1f} % more than predicted; other plans are taken "
                      "to need as much more.",
                      gib_words(held->needed), (held->excess - 1) * 100));
    }
  }

  Json document(const SeenMemory& seen, const std::optional<Held>& held) const {
    Json sites = json_list(seen.largest, [&](const AllocationSite& site) -> Json {
      return {{"where", site.where}, {"bytes", site.bytes}};
    });
    Json json{{"schema", "shardwright.seen_memory/1.0"},
              {"file", file_},
              {"source", seen.source},
              {"capacity_bytes", or_null(seen.capacity)},
              {"in_use_bytes", or_null(seen.in_use)},
              {"allocated_bytes", or_null(seen.allocated)},
              {"peak_allocated_bytes", or_null(seen.peak_allocated)},
              {"reserved_bytes", or_null(seen.reserved)},
              {"refused_bytes", or_null(seen.refused)},
              {"free_bytes", or_null(seen.free)},
              {"largest", std::move(sites)},
              {"advice", advice(seen)},
              {"held", nullptr}};
    if (!held) return json;
    Json fix(nullptr);
    if (held->fix) {
      Json changes = json_list(held->fix->changes, [&](const KnobChange& change) -> Json {
        return {{"knob", change.knob}, {"from", change.from}, {"to", change.to}};
      });
      fix = {{"changes", std::move(changes)},
             {"plan", plan_to_json(held->fix->prediction.plan)},
             {"total_bytes", held->fix->prediction.memory.total_bytes},
             {"verdict", name_of(held->fix_verdict)},
             {"tokens_per_gpu_s", held->fix->prediction.time.tokens_per_gpu_s}};
    }
    json["held"] = {{"plan", plan_to_json(held->job.plans.front())},
                    {"predicted_total_bytes", held->prediction.memory.total_bytes},
                    {"predicted_reserved_bytes", held->prediction.memory.peak_reserved_bytes},
                    {"needed_bytes", held->needed},
                    {"needed_over_predicted", held->excess},
                    {"fits", held->fits},
                    {"fix", std::move(fix)}};
    return json;
  }

  PlanFlags flags_;
  std::string file_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_import_memory_verb() {
  return std::make_unique<ImportMemoryVerb>();
}

}  // namespace shardwright::cli
