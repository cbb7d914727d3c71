// SPDX-License-Identifier: Apache-2.0
// Memory and time as stacked bars, of stages one each, and the interval of the step time.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cli/render/html/axis.h"
#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/stages.h"
#include "cli/render/text/quantity.h"

namespace shardwright::cli::html {
namespace {

constexpr double kWidth = 980, kBar = 34;

struct Part {
  std::string style, name, value;
  double amount = 0;
};

/// The class of text on that colour; the reader's own ink on what is light by day and dark by
/// night.
const char* ink_on(std::string_view style) {
  if (style == "cached" || style == "runtime" || style == "host" || style == "gradbuf" ||
      style == "bubble") {
    return "";
  }
  return style == "activations" || style == "data" ? "indark" : "in";
}

/// The parts from left to right; those that are wide enough carry their names.
std::string stacked(const std::vector<Part>& parts, double scale, double y) {
  std::string body;
  double x = 0;
  for (const Part& part : parts) {
    const double width = part.amount * scale;
    if (width <= 0) continue;
    body += rect(x, y, width, kBar, "f-" + part.style, part.name + ": " + part.value);
    if (text_width(part.name) < width - 8) {
      body += text(x + width / 2, y + kBar / 2 + 4, part.name, "middle", ink_on(part.style));
    }
    x += width;
  }
  return body;
}

/// A GPU's memory by category, the allocator's spare part and the runtime last.
std::vector<Part> memory_parts(const std::array<double, kMemoryCategories>& breakdown,
                               Bytes allocated, Bytes reserved, Bytes runtime) {
  constexpr std::array<const char*, kMemoryCategories> kStyles = {
      "parameters", "master",      "gradients", "optstate", "gatherbuf",
      "gradbuf",    "activations", "loss",      "workspace"};
  std::vector<Part> parts;
  const auto add = [&](const char* style, std::string name, Bytes amount) {
    std::replace(name.begin(), name.end(), '_', ' ');
    parts.push_back({style, std::move(name), bytes(amount), static_cast<double>(amount)});
  };
  for (std::size_t i = 0; i < kStyles.size(); ++i) {
    add(kStyles[i], std::string(name_of(static_cast<MemoryCategory>(i))),
        static_cast<Bytes>(breakdown[i]));
  }
  add("cached", "reserved, unused", reserved - allocated);
  add("runtime", "runtime", runtime);
  return parts;
}

std::string keys_of(const std::vector<Part>& parts) {
  std::vector<Key> keys;
  for (const Part& part : parts) {
    if (part.amount > 0) keys.push_back({part.style, part.name, part.value});
  }
  return legend(keys);
}

}  // namespace

std::string memory_picture(const sim::MemoryPrediction& memory) {
  std::array<double, kMemoryCategories> breakdown{};
  for (std::size_t i = 0; i < breakdown.size(); ++i)
    breakdown[i] = static_cast<double>(memory.breakdown_bytes[i]);
  const std::vector<Part> parts = memory_parts(breakdown, memory.peak_allocated_bytes,
                                               memory.peak_reserved_bytes, memory.runtime_bytes);
  const auto usable = static_cast<double>(memory.usable_bytes);
  const auto total = static_cast<double>(memory.total_bytes);
  const double scale = (kWidth - 4) / std::max({usable, total, 1.0});
  constexpr double kTop = 20;
  std::string body = rect(0, kTop, usable * scale, kBar, "row") + stacked(parts, scale, kTop);
  if (total > usable) body += rect(usable * scale, kTop, (total - usable) * scale, kBar, "over");
  body += line(usable * scale, kTop - 6, usable * scale, kTop + kBar + 6, "limit");
  const std::string label = fmt::format("usable {}", bytes(memory.usable_bytes));
  const bool left = usable * scale > kWidth / 2;
  body += text(usable * scale + (left ? -6 : 6), 12, label, left ? "end" : "start", "soft");
  return svg(kWidth, kTop + kBar + 8, "Memory of a GPU at its peak", body) + keys_of(parts);
}

std::string time_picture(const sim::TimePrediction& time) {
  std::vector<Part> parts;
  const auto add = [&](const char* style, const char* name, double amount) {
    parts.push_back({style, name,
                     fmt::format("{} ({})", duration(amount), percent(amount / time.iteration_s)),
                     amount});
  };
  add("compute", "compute", time.compute_s);
  add("exposed", "exposed communication", time.exposed_communication_s);
  add("host", "host", time.host_s);
  add("optimizer", "optimizer", time.optimizer_s);
  return svg(kWidth, kBar, "Where the time goes",
             stacked(parts, kWidth / std::max(time.iteration_s, 1e-12), 0)) +
         keys_of(parts);
}

std::string stage_memory_picture(const sim::Prediction& prediction) {
  const sim::MemoryPrediction& memory = prediction.memory;
  constexpr double kRow = 24, kTall = 18, kTop = 20, kVerdict = 128;
  const double width = kPlotWidth - kVerdict;
  const auto usable = static_cast<double>(memory.usable_bytes);
  double most = std::max(usable, 1.0);
  for (const sim::StagePrediction& stage : prediction.stages) {
    most = std::max(most, static_cast<double>(stage.peak_reserved_bytes + memory.runtime_bytes));
  }
  const double scale = width / most, limit = kPlotLeft + usable * scale;
  std::string body;
  std::vector<Part> all;
  double y = kTop;
  for (const sim::StagePrediction& stage : prediction.stages) {
    const std::int64_t s = stage.stage;
    const Bytes reserved = stage.peak_reserved_bytes;
    const Bytes total = reserved + memory.runtime_bytes;
    const bool fits = total <= memory.usable_bytes;
    body += text(kPlotLeft - 8, y + 13, fmt::format("stage {}", s), "end", "soft");
    body += rect(kPlotLeft, y, width, kTall, "row");
    double x = kPlotLeft;
    const std::vector<Part> parts = memory_parts(stage.breakdown_bytes, stage.peak_allocated_bytes,
                                                 reserved, memory.runtime_bytes);
    for (const Part& part : parts) {
      if (part.amount <= 0) continue;
      body += rect(x, y, part.amount * scale, kTall, "f-" + part.style,
                   fmt::format("stage {}, {}: {}", s, part.name, part.value));
      x += part.amount * scale;
      const bool known = std::any_of(all.begin(), all.end(),
                                     [&](const Part& other) { return other.name == part.name; });
      if (!known) all.push_back({part.style, part.name, "", 1});
    }
    body +=
        text(kPictureWidth - 2, y + 13, fmt::format("{}{}", bytes(total), fits ? "" : ", too much"),
             "end", fits ? "soft" : "strong");
    y += kRow;
  }
  body += line(limit, kTop - 6, limit, y - kRow + kTall + 4, "limit");
  body += text(limit - 6, 12, fmt::format("usable {}", bytes(memory.usable_bytes)), "end", "soft");
  return svg(kPictureWidth, y + 2, "Memory of every stage at its peak", body) + keys_of(all);
}

std::string cause_picture(const sim::Prediction& prediction) {
  const sim::TimePrediction& time = prediction.time;
  std::vector<Part> parts;
  double rest = time.iteration_s - variation_s(prediction);
  const auto add = [&](const char* style, const char* name, double amount) {
    rest -= amount;
    parts.push_back({style, name,
                     fmt::format("{} ({})", duration(amount), percent(amount / time.iteration_s)),
                     amount});
  };
  const auto exposed = [&](CommGroup group) {
    return prediction.exposed_s[static_cast<std::size_t>(group)];
  };
  add("compute", "compute", time.compute_s);
  add("tensor", "tensor communication", exposed(CommGroup::kTensor));
  add("context", "context communication", exposed(CommGroup::kContext));
  add("expert", "expert communication", exposed(CommGroup::kExpert));
  add("pipeline", "pipeline communication", exposed(CommGroup::kPipeline));
  add("data", "data communication", exposed(CommGroup::kData));
  add("host", "host", time.host_s);
  add("optimizer", "optimizer", time.optimizer_s);
  add("bubble", "bubble", rest > 1e-9 * time.iteration_s ? rest : 0);
  add("runtime", "nodes that vary", variation_s(prediction));
  return svg(kWidth, kBar, "Where the busiest stage's time goes",
             stacked(parts, kWidth / std::max(time.iteration_s, 1e-12), 0)) +
         keys_of(parts);
}

std::string interval_picture(const sim::TimePrediction& time) {
  const double low = time.interval_s[0], high = time.interval_s[1];
  if (!(high > low)) return "";
  const double margin = 0.35 * (high - low);
  const double begin = std::max(0.0, low - margin), end = high + margin;
  const auto x_of = [&](double s) { return kWidth * (s - begin) / (end - begin); };
  std::string body = line(0, 14, kWidth, 14, "grid");
  body += rect(x_of(low), 8, x_of(high) - x_of(low), 12, "f-recompute");
  body += rect(x_of(time.iteration_s) - 1.5, 4, 3, 20, "f-forward");
  body += text(x_of(low), 36, duration(low), "middle", "soft");
  body += text(x_of(high), 36, duration(high), "middle", "soft");
  body += text(x_of(time.iteration_s), 36, duration(time.iteration_s), "middle", "strong");
  return svg(kWidth, 42, "Interval of the step time", body);
}

}  // namespace shardwright::cli::html
