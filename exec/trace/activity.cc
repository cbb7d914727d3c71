// SPDX-License-Identifier: Apache-2.0
#include "exec/trace/activity.h"

#include <cxxabi.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>

namespace shardwright::exec {

namespace {

// Ids of this project are marked, because other libraries push ids of their own.
constexpr std::uint64_t kMark = 0x5357;
constexpr int kMarkShift = 48;
constexpr int kRankShift = 28;
constexpr std::uint64_t kMostRanks = std::uint64_t{1} << (kMarkShift - kRankShift);
constexpr std::uint64_t kMostOps = std::uint64_t{1} << kRankShift;
constexpr std::size_t kMostNameLetters = 120;

void remove_all(std::string& text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

/// Where the argument list of a demangled function begins: the first parenthesis outside template
/// arguments.
std::size_t arguments_begin(const std::string& text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (text[i] == '(' && depth == 0) return i;
  }
  return text.size();
}

/// Where the name begins behind a return type: after the last space outside template arguments.
std::size_t name_begin(const std::string& text) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (text[i] == ' ' && depth == 0) begin = i + 1;
  }
  return begin;
}

}  // namespace

std::uint64_t op_tag(const OpTag& tag) {
  return kMark << kMarkShift | static_cast<std::uint64_t>(tag.rank) % kMostRanks << kRankShift |
         static_cast<std::uint64_t>(tag.op) % kMostOps;
}

std::optional<OpTag> op_of_tag(std::uint64_t id) {
  if (id >> kMarkShift != kMark) return std::nullopt;
  return OpTag{static_cast<std::int32_t>(id >> kRankShift & (kMostRanks - 1)),
               static_cast<OpId>(id & (kMostOps - 1))};
}

bool is_nccl_kernel(const std::string& name) {
  return name.starts_with("ncclDevKernel_") || name.starts_with("ncclSymkDevKernel_") ||
         name.starts_with("ncclKernel_") || name.find("ncclDevKernel_") != std::string::npos;
}

std::string kernel_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? demangled.get() : mangled;
  for (const char* part : {"(anonymous namespace)::", "shardwright::", "kernels::", "cuda::"}) {
    remove_all(name, part);
  }
  name.resize(arguments_begin(name));
  name.erase(0, name_begin(name));
  if (name.size() > kMostNameLetters) name = name.substr(0, kMostNameLetters) + "...";
  return name;
}

std::string call_name(const std::string& name) {
  const std::size_t version = name.rfind("_v");
  const bool numbered = version != std::string::npos && version + 2 < name.size() &&
                        name.find_first_not_of("0123456789", version + 2) == std::string::npos;
  return numbered ? name.substr(0, version) : name;
}

namespace {

constexpr int kReadings = 16;
// Clocks that are read in one process never drift apart by more; a steeper line is noise of
// readings that lie close together.
constexpr double kMostDrift = 1e-3;
constexpr double kShortestNs = 1e6;

}  // namespace

Nanoseconds steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ClockReading read_clocks(const std::function<Nanoseconds()>& steady,
                         const std::function<std::uint64_t()>& other) {
  ClockReading best;
  for (int i = 0; i < kReadings; ++i) {
    const Nanoseconds before = steady();
    const std::uint64_t between = other();
    const Nanoseconds after = steady();
    const Nanoseconds half = (after - before + 1) / 2;
    if (i == 0 || half < best.uncertainty_ns) best = {between, before + (after - before) / 2, half};
  }
  return best;
}

ClockMap::ClockMap(const ClockReading& first, const ClockReading& last) : first_(first) {
  const double other = static_cast<double>(last.other_ns) - static_cast<double>(first.other_ns);
  const auto steady = static_cast<double>(last.steady_ns - first.steady_ns);
  if (other < kShortestNs) return;
  const double rate = steady / other;
  if (std::abs(rate - 1) < kMostDrift) rate_ = rate;
}

Nanoseconds ClockMap::to_steady(std::uint64_t other_ns) const {
  // The difference first: the clocks' own values have too many digits for a double.
  const auto apart = static_cast<std::int64_t>(other_ns - first_.other_ns);
  return first_.steady_ns + apart +
         static_cast<Nanoseconds>(std::llround((rate_ - 1) * static_cast<double>(apart)));
}

namespace {

// Calls that started nothing are shown from this length on; the many short ones (questions about
// errors, attributes) would only hide the others.
constexpr Nanoseconds kShownCallNs = 2000;

class Joiner {
 public:
  Joiner(const ActivityLog& log, const ClockMap& clock, std::int32_t rank,
         const std::unordered_map<std::int32_t, RankStreams>& all,
         const std::vector<IssuedOp>& issued, JoinSummary& summary)
      : log_(log), clock_(clock), rank_(rank), issued_(issued), summary_(summary) {
    lowest_ = rank;
    for (const auto& [other, streams] : all) {
      lowest_ = std::min(lowest_, other);
      std::vector<std::string> tracks;
      for (std::size_t i = 0; i < streams.numbers.size(); ++i) {
        const auto track = std::find(tracks.begin(), tracks.end(), streams.names[i]);
        owners_[{streams.device, streams.numbers[i]}] = {
            other, static_cast<std::uint8_t>(track - tracks.begin())};
        if (track == tracks.end()) tracks.push_back(streams.names[i]);
      }
      if (other == rank) step_.streams = std::move(tracks);
    }
    for (const Activity& activity : log.activities) {
      if (activity.kind == ActivityKind::kCall) {
        if (const auto tag = tag_of(activity)) threads_[activity.thread] = tag->rank;
        called_ns_[activity.correlation] = clock.to_steady(activity.begin_ns);
      } else if (on_device(activity)) {
        started_[activity.correlation] = true;
      }
    }
  }

  TracedStep join() {
    for (const Activity& activity : log_.activities) {
      if (on_device(activity)) {
        add_device(activity);
      } else {
        add_host(activity);
      }
    }
    if (rank_ == lowest_) {
      summary_.dropped += log_.dropped;
      summary_.unread += log_.unread;
    }
    const auto by_begin = [](const Span& a, const Span& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    };
    std::stable_sort(step_.spans.begin(), step_.spans.end(), by_begin);
    std::stable_sort(step_.host.begin(), step_.host.end(), by_begin);
    return std::move(step_);
  }

 private:
  static bool on_device(const Activity& activity) {
    return activity.kind == ActivityKind::kKernel || activity.kind == ActivityKind::kCopy ||
           activity.kind == ActivityKind::kSet;
  }

  std::optional<OpTag> tag_of(const Activity& activity) const {
    const auto found = log_.tags.find(activity.correlation);
    return found == log_.tags.end() ? std::nullopt : op_of_tag(found->second);
  }

  /// The operation that was being issued when the record's call was made.
  std::optional<OpTag> issued_with(const Activity& activity) const {
    const auto call = called_ns_.find(activity.correlation);
    if (call == called_ns_.end()) return std::nullopt;
    auto at =
        std::upper_bound(issued_.begin(), issued_.end(), call->second,
                         [](Nanoseconds when, const IssuedOp& op) { return when < op.begin_ns; });
    if (at == issued_.begin() || (--at)->end_ns < call->second) return std::nullopt;
    return OpTag{rank_, at->op};
  }

  Span span_of(const Activity& activity, const std::optional<OpTag>& tag, const std::string& name) {
    Span span;
    span.id = tag ? tag->op : -1;
    span.rank = rank_;
    span.begin_ns = clock_.to_steady(activity.begin_ns);
    span.end_ns = std::max(span.begin_ns, clock_.to_steady(activity.end_ns));
    const auto fresh = static_cast<std::int32_t>(step_.names.size());
    span.name = names_.emplace(name, fresh).first->second;
    if (span.name == fresh) step_.names.push_back(name);
    return span;
  }

  void add_device(const Activity& activity) {
    auto tag = tag_of(activity);
    const auto owner = owners_.find({activity.device, activity.stream});
    const std::int32_t rank = tag                      ? tag->rank
                              : owner != owners_.end() ? owner->second.first
                                                       : lowest_;
    if (rank != rank_) return;
    if (!tag) tag = issued_with(activity);
    // A record that was cut off has no end.
    if (activity.begin_ns == 0 || activity.end_ns == 0) {
      ++summary_.unread;
      return;
    }
    const bool is_kernel = activity.kind == ActivityKind::kKernel;
    (is_kernel ? summary_.kernels : summary_.copies) += 1;
    if (is_kernel && is_nccl_kernel(activity.name)) ++summary_.nccl_kernels;
    if (!tag) ++summary_.without_op;
    Span span = span_of(activity, tag,
                        is_kernel ? kernel_name(activity.name)
                                  : fmt::format("{}, {} bytes", activity.name, activity.bytes));
    span.stream = owner != owners_.end() && owner->second.first == rank_
                      ? owner->second.second
                      : foreign_stream(activity.stream);
    step_.spans.push_back(span);
  }

  /// A track for a stream that the schedule does not know.
  std::uint8_t foreign_stream(std::uint32_t number) {
    constexpr std::size_t kMost = 255;
    const auto fresh = static_cast<std::uint8_t>(std::min(step_.streams.size(), kMost));
    const auto [at, is_new] = foreign_.emplace(number, fresh);
    if (is_new && step_.streams.size() < kMost) {
      step_.streams.push_back(fmt::format("stream {} of the driver", number));
    }
    return at->second;
  }

  void add_host(const Activity& activity) {
    if (activity.kind == ActivityKind::kOverhead) {
      if (rank_ != lowest_) return;
      ++summary_.overheads;
      summary_.overhead_ns += static_cast<Nanoseconds>(activity.end_ns - activity.begin_ns);
      step_.host.push_back(span_of(activity, std::nullopt, "profiler: " + activity.name));
      return;
    }
    const auto tag = tag_of(activity);
    const auto thread = threads_.find(activity.thread);
    const std::int32_t rank = tag ? tag->rank : thread != threads_.end() ? thread->second : lowest_;
    if (rank != rank_) return;
    if (activity.kind == ActivityKind::kWait) return;  // the call that waits is there, too
    ++summary_.calls;
    const bool starts = started_.contains(activity.correlation);
    const auto length = static_cast<Nanoseconds>(activity.end_ns - activity.begin_ns);
    if (!starts && length < kShownCallNs) return;
    step_.host.push_back(span_of(activity, tag, call_name(activity.name)));
  }

  const ActivityLog& log_;
  const ClockMap& clock_;
  std::int32_t rank_;
  std::int32_t lowest_ = 0;
  const std::vector<IssuedOp>& issued_;
  JoinSummary& summary_;
  /// Rank and place of a stream, by device and number.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::int32_t, std::uint8_t>> owners_;
  std::unordered_map<std::uint32_t, std::int32_t> threads_;
  std::unordered_map<std::uint32_t, Nanoseconds> called_ns_;  // by correlation
  std::unordered_map<std::uint32_t, bool> started_;  // correlations of what ran on the device
  std::map<std::uint32_t, std::uint8_t> foreign_;
  std::map<std::string, std::int32_t> names_;
  TracedStep step_;
};

}  // namespace

std::string describe(const JoinSummary& summary, std::int64_t steps) {
  std::string text = fmt::format(
      "{} step{} recorded kernel by kernel: {} kernels ({} of NCCL), {} copies, {} calls; {} of "
      "them "
      "on the device belong to no operation; the profiler counts {:.3f} ms of overhead in {} "
      "records",
      steps, steps == 1 ? "" : "s", summary.kernels, summary.nccl_kernels, summary.copies,
      summary.calls, summary.without_op, static_cast<double>(summary.overhead_ns) * 1e-6,
      summary.overheads);
  if (summary.dropped > 0) {
    text += fmt::format("; {} records were dropped, so the trace has holes", summary.dropped);
  }
  if (summary.unread > 0) text += fmt::format("; {} records could not be read", summary.unread);
  return text;
}

TracedStep join_activity(const ActivityLog& log, const ClockMap& clock, std::int32_t rank,
                         const std::unordered_map<std::int32_t, RankStreams>& all,
                         const std::vector<IssuedOp>& issued, JoinSummary& summary) {
  return Joiner(log, clock, rank, all, issued, summary).join();
}

NameTable::NameTable(std::vector<std::string>& names) : names_(names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    places_.emplace(names[i], static_cast<std::int32_t>(i));
  }
}

std::int32_t NameTable::index_of(const std::string& name) {
  const auto [at, is_new] = places_.emplace(name, static_cast<std::int32_t>(names_.size()));
  if (is_new) names_.push_back(name);
  return at->second;
}

void NameTable::rename(std::vector<Span>& spans, const std::vector<std::string>& from) {
  for (Span& span : spans) {
    if (span.name < 0 || static_cast<std::size_t>(span.name) >= from.size()) continue;
    span.name = index_of(from[static_cast<std::size_t>(span.name)]);
  }
}

}  // namespace shardwright::exec
