// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/nccl_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "profiles/import/byte_stream.h"
#include "profiles/import/trace_tables.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {
namespace {

using Words = std::vector<std::string_view>;

Words split_words(std::string_view line) {
  Words words;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r') {
      ++at;
      continue;
    }
    std::size_t end = line.find_first_of(" \t\r", at);
    if (end == std::string_view::npos) end = line.size();
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

/// Without what mpirun --tag-output and srun -l put before a line: "[1,0]<stdout>:", "0: ".
std::string_view without_tag(std::string_view line) {
  const std::size_t mark = line.find("<stdout>:");
  if (!line.empty() && line[0] == '[' && mark != std::string_view::npos && mark < 32) {
    return line.substr(mark + 9);
  }
  const std::size_t colon = line.find(": ");
  if (colon != std::string_view::npos && colon > 0 && colon < 6 &&
      line.substr(0, colon).find_first_not_of("0123456789") == std::string_view::npos) {
    return line.substr(colon + 2);
  }
  return line;
}

std::optional<OpKind> program_in(std::string_view line) {
  const auto has = [&](std::string_view name) { return line.find(name) != std::string_view::npos; };
  if (has("all_gather_perf")) return OpKind::kAllGather;
  if (has("reduce_scatter_perf")) return OpKind::kReduceScatter;
  if (has("all_reduce_perf")) return OpKind::kAllReduce;
  if (has("broadcast_perf")) return OpKind::kBroadcast;
  return std::nullopt;
}

bool other_program_in(std::string_view line) {
  for (const std::string_view name :
       {"alltoall_perf", "sendrecv_perf", "gather_perf", "scatter_perf", "hypercube_perf"}) {
    const std::size_t at = line.find(name);
    if (at != std::string_view::npos && (at == 0 || (line[at - 1] != '_'))) return true;
  }
  return line.find(" reduce_perf") != std::string_view::npos ||
         line.find("/reduce_perf") != std::string_view::npos;
}

struct Row {
  double bytes = 0;
  std::string type;
  std::string operation;                                  // "sum", "none" or empty
  std::vector<std::pair<double, double>> time_and_ratio;  // us; bus over algorithm bandwidth
  double algorithm = 0, bus = 0;                          // GB/s of the first table
};

/// rccl-tests can print the algorithm, the protocol and the number of channels behind a row.
Words without_choice(Words words) {
  const std::size_t n = words.size();
  if (n >= 10 && parse_int64(words[n - 1]) && !parse_double(words[n - 2]) &&
      !parse_double(words[n - 3]) && words[n - 2] != "N/A" && words[n - 3] != "N/A") {
    words.resize(n - 3);
  }
  return words;
}

/// "size count type [redop] [root] time algbw busbw error [time algbw busbw error]".
std::optional<Row> row_of(const Words& all) {
  const Words words = without_choice(all);
  if (words.size() < 7) return std::nullopt;
  const auto bytes = parse_int64(words[0]);
  const auto count = parse_int64(words[1]);
  if (!bytes || !count || *bytes < 0 || element_bytes_of(words[2]) == 0) return std::nullopt;
  Row row;
  row.bytes = static_cast<double>(*bytes);
  row.type = words[2];
  std::size_t at = 3;
  if (!parse_double(words[at])) row.operation = words[at++];
  // Four columns per table follow; before them the root, if it is printed.
  if ((words.size() - at) % 4 == 1) ++at;
  for (; at + 3 < words.size(); at += 4) {
    const auto time = parse_double(words[at]);
    const auto algorithm = parse_double(words[at + 1]);
    const auto bus = parse_double(words[at + 2]);
    if (!time || !algorithm || !bus || *time <= 0) return std::nullopt;
    if (row.time_and_ratio.empty()) row.algorithm = *algorithm, row.bus = *bus;
    row.time_and_ratio.emplace_back(*time, *algorithm > 0 ? *bus / *algorithm : 0);
  }
  return row.time_and_ratio.empty() ? std::nullopt : std::optional(row);
}

/// Large messages tell: bus bandwidth is 2(n-1)/n, (n-1)/n or 1 times that of the algorithm.
std::optional<OpKind> kind_by_ratio(const std::vector<Row>& rows, std::int64_t ranks) {
  if (rows.empty() || ranks < 3) return std::nullopt;  // with two ranks 2(n-1)/n is 1
  const double n = static_cast<double>(ranks);
  const Row& largest = last_of(rows, "the table");
  const double ratio = first_of(largest.time_and_ratio, "a row").second;
  const auto near = [&](double expected) { return std::abs(ratio - expected) < 0.02 * expected; };
  if (near(2 * (n - 1) / n)) return OpKind::kAllReduce;
  // all_gather prints what alltoall prints too; a sum over 1/n of the ranks is only reduce_scatter.
  if (near((n - 1) / n) && largest.operation == "sum") return OpKind::kReduceScatter;
  return std::nullopt;
}

/// The ranks that the two bandwidths of every row allow, printed to a hundredth: 0 when these are
/// several numbers or none.
std::int64_t ranks_by_ratio(const std::vector<Row>& rows, OpKind kind) {
  constexpr double kRounding = 0.005, kMostRanks = 1e6;
  const bool sums = kind == OpKind::kAllReduce;
  if (!sums && kind != OpKind::kAllGather && kind != OpKind::kReduceScatter) return 0;
  // ratio = 2 (n - 1) / n or (n - 1) / n, which grows with n.
  const auto ranks_of = [&](double ratio) {
    const double rest = 1 - (sums ? ratio / 2 : ratio);
    return rest > 1 / kMostRanks ? 1 / rest : kMostRanks;
  };
  double least = 2, most = kMostRanks;
  for (const Row& row : rows) {
    if (row.algorithm <= kRounding) continue;
    least = std::max(least, ranks_of((row.bus - kRounding) / (row.algorithm + kRounding)));
    most = std::min(most, ranks_of((row.bus + kRounding) / (row.algorithm - kRounding)));
  }
  const double first = std::ceil(least);
  return first <= most && first + 1 > most ? static_cast<std::int64_t>(first) : 0;
}

class NcclTestsReader {
 public:
  NcclTestsReader(const std::filesystem::path& path, const GpusOfNode& node, ObservationSet& set)
      : file_(path.string()), node_(node), set_(set) {
    source_.file = file_;
    source_.format = "nccl-tests";
    kind_ = program_in(path.filename().string());
  }

  void read(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = text.find('\n', at);
      if (end == std::string_view::npos) end = text.size();
      line(without_tag(text.substr(at, end - at)));
      at = end + 1;
    }
    flush();
    if (!any_row_) {
      throw Error(
          fmt::format("{} holds no row of nccl-tests (size, count, type, redop, root, time, "
                      "algbw, busbw), expected the output of all_gather_perf, "
                      "reduce_scatter_perf or all_reduce_perf.",
                      file_));
    }
  }

 private:
  void line(std::string_view text) {
    if (program_in(text) || other_program_in(text)) {
      flush();
      kind_ = program_in(text);
      unsupported_ = !kind_;
      return;
    }
    if (text.find("Using devices") != std::string_view::npos) {
      flush();
      devices_.clear();
      hosts_.clear();
      return;
    }
    Words words = split_words(text);
    if (words.size() > 1 && words[0] == "#") return comment(text, words);
    if (words.size() > 1 && words[0] == "Rank") {  // pages that take '#' for a heading drop it
      words.insert(words.begin(), "#");
      return comment(text, words);
    }
    if (const auto row = row_of(words)) {
      any_row_ = true;
      rows_.push_back(*row);
    } else if (!words.empty() && parse_int64(words[0]) && words.size() > 3 &&
               element_bytes_of(words[2]) != 0) {
      count_left_out(set_.left_out, "rows of nccl-tests that are incomplete", 0);
    }
  }

  void comment(std::string_view text, const Words& words) {
    // "#  Rank  0 Group  0 Pid 123 on  host device  0 [0x07] NVIDIA A100-SXM4-80GB"
    const bool device =
        words.size() > 6 && words[1] == "Rank" && text.find(" device ") != std::string_view::npos;
    if (device) {
      devices_.insert(std::string(words[2]));
      for (std::size_t i = 0; i + 1 < words.size(); ++i) {
        if (words[i] == "on") hosts_.insert(std::string(words[i + 1]));
      }
      const std::size_t bracket = text.find(']');
      if (bracket != std::string_view::npos) {
        std::string_view gpu = text.substr(bracket + 1);
        while ((gpu.starts_with(' ') || gpu.starts_with('\t'))) gpu.remove_prefix(1);
        while ((gpu.ends_with(' ') || gpu.ends_with('\r'))) gpu.remove_suffix(1);
        source_.gpu = gpu;
      }
    }
    const std::size_t version = text.find("NCCL version ");
    if (version != std::string_view::npos) source_.software = std::string(text.substr(version));
  }

  /// The rows so far belong to one run.
  void flush() {
    if (rows_.empty()) return;
    auto ranks = static_cast<std::int64_t>(devices_.size());
    std::optional<OpKind> kind = kind_;
    if (devices_.empty() && kind) ranks = ranks_by_ratio(rows_, *kind);
    if (devices_.empty() && ranks > 1) {
      set_.notes.push_back(
          fmt::format("{} lists no devices: its bandwidths are those of {} ranks, on as few nodes "
                      "as hold these.",
                      file_, ranks));
    }
    if (!kind && !unsupported_) kind = kind_by_ratio(rows_, ranks);
    if (ranks < 2 || !kind) {
      set_.notes.push_back(
          ranks < 2 && kind
              ? fmt::format("{} does not list two devices or more (\"#  Rank 0 ... on ... "
                            "device\"), and its bandwidths leave open how many there were; {} "
                            "rows were left out.",
                            file_, rows_.size())
              : fmt::format("{} does not say which collective it timed, or one without a "
                            "cost model (name the file all_gather_perf.txt, or keep the "
                            "command in it); {} rows were left out.",
                            file_, rows_.size()));
      count_left_out(set_.left_out, "rows of nccl-tests whose collective or ranks are unknown", 0,
                     static_cast<std::int64_t>(rows_.size()));
      rows_.clear();
      return;
    }
    const std::size_t source = source_index(ranks);
    for (const Row& row : rows_) {
      if (row.bytes <= 0) continue;
      for (const auto& [time_us, ratio] : row.time_and_ratio) {
        Observation seen;
        seen.op = *kind;
        seen.work.kind = WorkKind::kCollective;
        seen.work.group = CommGroup::kWorld;
        seen.work.bytes = static_cast<std::int64_t>(row.bytes);
        seen.work.dtype_bytes = static_cast<std::uint8_t>(element_bytes_of(row.type));
        seen.seconds = time_us * 1e-6;
        seen.ranks = ranks;
        seen.nodes = nodes_of(ranks);
        seen.source = static_cast<std::int32_t>(source);
        set_.observations.push_back(seen);
      }
    }
    rows_.clear();
  }

  /// A node is what the fast link spans. That is a host, unless its size was given or is more GPUs
  /// than a host has.
  std::int64_t nodes_of(std::int64_t ranks) const {
    constexpr std::int64_t kMostGpusOfAHost = 16;
    if (node_.gpus > 0 && (node_.given || node_.gpus > kMostGpusOfAHost || hosts_.empty())) {
      return (ranks + node_.gpus - 1) / node_.gpus;
    }
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(hosts_.size()));
  }

  /// Runs of one file on as many ranks share a source.
  std::size_t source_index(std::int64_t ranks) {
    source_.world_size = ranks;
    if (set_.sources.empty() || last_of(set_.sources, file_).file != file_ ||
        last_of(set_.sources, file_).world_size != ranks) {
      set_.sources.push_back(source_);
    }
    return set_.sources.size() - 1;
  }

  std::string file_;
  GpusOfNode node_;
  ObservationSet& set_;
  ObservationSource source_;
  std::optional<OpKind> kind_;
  bool unsupported_ = false;
  bool any_row_ = false;
  std::set<std::string> devices_, hosts_;
  std::vector<Row> rows_;
};

/// Whether one of the first lines is a row, as in a log of which somebody kept the rows alone.
bool begins_with_row(std::string_view text) {
  constexpr int kLines = 64;
  for (int line = 0; line < kLines && !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (row_of(split_words(without_tag(text.substr(0, end))))) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

}  // namespace

bool looks_like_nccl_tests(std::string_view text) {
  return text.find("busbw") != std::string_view::npos ||
         text.find("Collective test starting") != std::string_view::npos ||
         (text.find("nThread") != std::string_view::npos &&
          text.find("minBytes") != std::string_view::npos) ||
         begins_with_row(text);
}

void read_nccl_tests(const std::filesystem::path& path, const GpusOfNode& node,
                     ObservationSet& set) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  NcclTestsReader(path, node, set).read(read_unpacked(path, kMostBytes, "a log of nccl-tests"));
}

}  // namespace shardwright::profiles
