// SPDX-License-Identifier: Apache-2.0
#include "cli/render/drawn_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/render/text/json_text.h"
#include "cli/streams.h"
#include "sim/core/base/error.h"
#include "sim/core/chrome_trace.h"
#include "sim/predict.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostStretches = 20'000;  // of all lanes, about
constexpr std::int64_t kFewestOfLane = 400, kMostOfLane = 2000;

constexpr std::string_view kStageRole = "stage";

struct Window {
  Nanoseconds begin_ns = 0, end_ns = 0;
  Nanoseconds length() const { return end_ns - begin_ns; }
  bool holds(Nanoseconds at) const { return at >= begin_ns && at < end_ns; }
};

/// What a span of a lane is.
using Word = std::array<std::string, 3>;  // phase, kind, name
struct DrawnSpan {
  Window at;
  Word word;
  std::int32_t layer = -1;
};
struct Lane {
  std::size_t process;
  std::string name;
  std::string_view role;
  std::vector<DrawnSpan> spans;
};

/// By stage its first rank.
std::map<std::int32_t, std::int32_t> first_ranks(const Timeline& timeline) {
  std::map<std::int32_t, std::int32_t> firsts;
  const auto see = [&](std::int32_t rank) {
    const auto [at, fresh] = firsts.try_emplace(timeline.stage_of(rank), rank);
    if (!fresh) at->second = std::min(at->second, rank);
  };
  for (const Span& span : timeline.spans) see(span.rank);
  for (const PassSpan& span : timeline.passes) see(span.rank);
  return firsts;
}

/// The step of median length on these ranks.
std::pair<std::int32_t, Window> usual_step(const Timeline& timeline,
                                           const std::map<std::int32_t, std::int32_t>& ranks) {
  std::map<std::int32_t, Window> steps;
  const auto see = [&](const auto& span) {
    if (ranks.at(timeline.stage_of(span.rank)) != span.rank) return;
    Window& step = steps.try_emplace(span.step, Window{span.begin_ns, span.end_ns}).first->second;
    step.begin_ns = std::min(step.begin_ns, span.begin_ns);
    step.end_ns = std::max(step.end_ns, span.end_ns);
  };
  for (const std::vector<Span>* spans : {&timeline.spans, &timeline.host}) {
    for (const Span& span : *spans) see(span);
  }
  for (const PassSpan& span : timeline.passes) see(span);
  std::vector<std::pair<std::int32_t, Window>> by_length(steps.begin(), steps.end());
  const auto middle = by_length.begin() + static_cast<std::ptrdiff_t>((by_length.size() - 1) / 2);
  std::nth_element(by_length.begin(), middle, by_length.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.length(), a.first) < std::pair(b.second.length(), b.first);
  });
  return *middle;
}

class Drawing {
 public:
  explicit Drawing(const sim::StepTrace& trace)
      : trace_(trace), timeline_(trace.timeline), ranks_(first_ranks(timeline_)) {
    std::tie(step_, whole_) = usual_step(timeline_, ranks_);
    const std::int32_t middle = timeline_.stage_count() / 2;
    for (const auto& [stage, rank] : ranks_) {
      name_process(rank);
      add_passes(rank);
      if (timeline_.passes.empty() || stage == middle) add_operations(rank);
    }
    std::erase_if(lanes_, [](const Lane& lane) { return lane.spans.empty(); });
    for (Lane& lane : lanes_) {
      std::stable_sort(lane.spans.begin(), lane.spans.end(),
                       [](const auto& a, const auto& b) { return a.at.begin_ns < b.at.begin_ns; });
      if (!windows_ && lane.role == name_of(StreamRole::kCompute)) windows_ = layer_windows(lane);
    }
  }

  Json json() {
    Json document{{"end_ns", whole_.length()}, {"processes", processes_}};
    document["lanes"] = json_list(lanes_, [&](const Lane& lane) -> Json {
      return {{"process", lane.process},
              {"name", lane.name},
              {"role", lane.role},
              {"spans", spans_json(lane)}};
    });
    document["operations"] = json_list(words_, [&](const Word* word) -> Json { return *word; });
    document["memory"] = memory_json();
    document["layer"] = Json::object();
    if (windows_) {
      for (const auto& [pass, window] : *windows_)
        document["layer"][pass] = {window.begin_ns, window.end_ns};
    }
    return document;
  }

 private:
  using LayerWindows = std::map<std::string, Window>;

  bool shows(const auto& span, std::int32_t rank) const {
    return span.rank == rank && span.step == step_;
  }
  Window from_begin(Nanoseconds begin_ns, Nanoseconds end_ns) const {
    return {begin_ns - whole_.begin_ns, end_ns - whole_.begin_ns};
  }

  void name_process(std::int32_t rank) {
    const auto at = timeline_.stages.find(rank);
    processes_.push_back(at == timeline_.stages.end()
                             ? timeline_.source
                             : fmt::format("{}: stage {} of {} ({})", timeline_.source,
                                           at->second.stage, timeline_.stage_count(),
                                           at->second.content));
  }

  void add_passes(std::int32_t rank) {
    Lane lane{processes_.size() - 1, "stage", kStageRole, {}};
    for (const PassSpan& span : timeline_.passes) {
      if (!shows(span, rank)) continue;
      lane.spans.push_back({from_begin(span.begin_ns, span.end_ns),
                            {std::string(name_of(span.work)), "",
                             name_of(span, timeline_.stages.at(rank).chunks > 1)}});
    }
    lanes_.push_back(std::move(lane));
  }

  void add_operations(std::int32_t rank) {
    const std::size_t process = processes_.size() - 1;
    Lane host{process, "host", "host", {}};
    for (const Span& span : timeline_.host) {
      if (shows(span, rank)) add(host, span);
    }
    lanes_.push_back(std::move(host));
    const std::size_t first = lanes_.size();
    for (std::size_t stream = 0; stream < timeline_.streams.size(); ++stream)
      lanes_.push_back({process, timeline_.streams[stream], name_of(trace_.roles[stream]), {}});
    for (const Span& span : timeline_.spans) {
      if (shows(span, rank)) add(lanes_[first + span.stream], span);
    }
  }

  void add(Lane& lane, const Span& span) const {
    const sim::TracedOperation& operation = trace_.operations.at(span.id);
    const Nanoseconds ready = sim::ready_ns(trace_, span);
    if (ready > span.begin_ns) {
      lane.spans.push_back({from_begin(span.begin_ns, ready),
                            {std::string(name_of(StageWork::kBubble)), "", "waits for others"}});
    }
    std::string name = operation.name;
    if (operation.layer >= 0) name.erase(0, name.find('.') + 1);
    lane.spans.push_back({from_begin(ready, span.end_ns),
                          {std::string(name_of(operation.phase)),
                           std::string(name_of(operation.kind)), std::move(name)},
                          operation.layer});
  }

  /// From the first kernel of the layer in the middle, forward and backward, to the next layer's.
  static LayerWindows layer_windows(const Lane& compute) {
    LayerWindows windows;
    std::set<std::int32_t> layers;
    for (const DrawnSpan& span : compute.spans) layers.insert(span.layer);
    layers.erase(-1);
    if (layers.empty()) return windows;
    const std::int32_t middle =
        *std::next(layers.begin(), static_cast<std::ptrdiff_t>(layers.size() / 2));
    std::map<std::string, bool> over;
    for (const DrawnSpan& span : compute.spans) {
      const std::string& phase = span.word[0];
      const bool forward = phase == name_of(Phase::kForward) || phase == name_of(Phase::kLoss);
      if (!forward && phase != name_of(Phase::kRecompute) && phase != name_of(Phase::kBackward))
        continue;
      const std::string pass = forward ? "forward" : "backward";
      if (over[pass]) continue;
      if (span.layer == middle) {
        windows.try_emplace(pass, span.at).first->second.end_ns = span.at.end_ns;
      } else if (windows.contains(pass)) {
        windows[pass].end_ns = span.at.begin_ns;
        over[pass] = true;
      }
    }
    return windows;
  }

  bool in_detail(Nanoseconds at) const {
    return windows_ && std::any_of(windows_->begin(), windows_->end(),
                                   [&](const auto& one) { return one.second.holds(at); });
  }

  std::size_t number_of(Word word) {
    const auto [at, fresh] = numbers_.try_emplace(std::move(word), words_.size());
    if (fresh) words_.push_back(&at->first);
    return at->second;
  }

  /// What is too short to be seen is one stretch: of passes so much of each kind, of operations the
  /// longest.
  Json spans_json(const Lane& lane) {
    const std::int64_t most =
        std::clamp(kMostStretches / std::ssize(lanes_), kFewestOfLane, kMostOfLane);
    const Nanoseconds shortest = whole_.length() / most;
    Json spans = Json::array();
    Nanoseconds at = 0;
    const auto put = [&](const Window& window, Word word, std::int32_t layer) {
      spans.push_back(window.begin_ns - at);
      spans.push_back(window.length());
      spans.push_back(number_of(std::move(word)));
      spans.push_back(layer);
      at = window.end_ns;
    };
    for (std::size_t i = 0, next = 0; i < lane.spans.size(); i = next) {
      const DrawnSpan& first = lane.spans[i];
      Window stretch = first.at;
      for (next = i + 1; next < lane.spans.size() && !in_detail(first.at.begin_ns); ++next) {
        const DrawnSpan& other = lane.spans[next];
        if (other.at.end_ns - stretch.begin_ns > shortest || in_detail(other.at.begin_ns)) break;
        stretch.end_ns = std::max(stretch.end_ns, other.at.end_ns);
      }
      const std::span<const DrawnSpan> together(&first, next - i);
      if (together.size() == 1) {
        put(stretch, first.word, first.layer);
      } else if (lane.role == kStageRole) {
        std::map<std::string, Nanoseconds> kinds;
        for (const DrawnSpan& span : together) kinds[span.word[0]] += span.at.length();
        for (Nanoseconds begin = stretch.begin_ns; const auto& [kind, length] : kinds) {
          put({begin, begin + length}, {kind, "", fmt::format("{}, several", kind)}, -1);
          begin += length;
        }
      } else {
        const DrawnSpan& longest = *std::max_element(
            together.begin(), together.end(),
            [](const auto& a, const auto& b) { return a.at.length() < b.at.length(); });
        put(stretch, {longest.word[0], longest.word[1], fmt::format("{} in a row", next - i)},
            longest.layer);
      }
    }
    return spans;
  }

  /// Of equal stretches of the step what is allocated and reserved at most.
  Json memory_json() const {
    Json memory = Json::object();
    if (timeline_.memory.empty()) return memory;
    constexpr std::int64_t kStretches = 2000;
    const Nanoseconds stretch = std::max<Nanoseconds>(1, whole_.length() / kStretches);
    const auto add = [&](const char* name, Bytes MemorySample::*size) {
      std::vector<std::pair<Nanoseconds, Bytes>> points;
      for (const MemorySample& sample : timeline_.memory) {
        if (sample.at_ns > whole_.end_ns) break;
        const Nanoseconds at = std::max<Nanoseconds>(0, sample.at_ns - whole_.begin_ns);
        if (sample.at_ns <= whole_.begin_ns) points.clear();
        if (points.empty() || at / stretch > points.back().first / stretch) {
          points.emplace_back(at, sample.*size);
        } else {
          points.back().second = std::max(points.back().second, sample.*size);
        }
      }
      const bool counted = std::any_of(points.begin(), points.end(),
                                       [](const auto& point) { return point.second > 0; });
      if (counted) memory[name] = points;
    };
    add("allocated", &MemorySample::allocated_bytes);
    add("reserved", &MemorySample::reserved_bytes);
    return memory;
  }

  const sim::StepTrace& trace_;
  const Timeline& timeline_;
  std::map<std::int32_t, std::int32_t> ranks_;
  std::int32_t step_ = 0;
  Window whole_;
  std::vector<std::string> processes_;
  std::vector<Lane> lanes_;
  std::optional<LayerWindows> windows_;
  std::map<Word, std::size_t> numbers_;
  std::vector<const Word*> words_;  // by number
};

}  // namespace

Json drawn_step(const sim::StepTrace& trace) {
  return Drawing(trace).json();
}

namespace {

TraceNotes notes_about(const std::string& verb, const sim::Job& inputs) {
  const Plan& plan = inputs.plans.front();
  TraceNotes notes = notes_of(
      {inputs.model_name, inputs.model_config, plan, inputs.profile.cluster.gpus_per_node});
  notes.insert(notes.begin(), {"tool", "shardwright " + verb});
  notes.insert(notes.end(),
               {{"cluster", inputs.cluster_name}, {"gpus", fmt::format("{}", plan.gpus)}});
  return notes;
}

void tell(const std::string& path) {
  notify(fmt::format("The trace is in {}; open it at ui.perfetto.dev.", path));
}

}  // namespace

void write_trace_of(const std::string& path, const std::string& verb, const sim::Job& inputs) {
  sim::Predictor predictor(inputs.model, inputs.profile);
  std::vector<sim::PredictedStep> steps;
  for (const Plan& plan : inputs.plans) steps.push_back(sim::predicted_step(predictor, plan));
  std::vector<TracedTimeline> timelines;
  for (const sim::PredictedStep& step : steps) {
    timelines.push_back({fmt::format("predicted, {}", name_of(step.prediction.plan.strategy)),
                         step.stages.data(), &step.timeline});
  }
  write_chrome_trace(path, timelines, notes_about(verb, inputs));
  tell(path);
}

}  // namespace shardwright::cli
