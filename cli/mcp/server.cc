// SPDX-License-Identifier: Apache-2.0
#include "cli/mcp/server.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/build_info.h"
#include "cli/child.h"
#include "cli/mcp/tools.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::cli {
namespace {

using Ordered = nlohmann::ordered_json;

// JSON-RPC 2.0, section 5.1.
constexpr int kNoJson = -32700, kNoRequest = -32600, kNoMethod = -32601, kNoParams = -32602;

constexpr std::array<std::string_view, 4> kVersions = {"2025-11-25", "2025-06-18", "2025-03-26",
                                                       "2024-11-05"};

std::string text_of(const Ordered& message) {
  return message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Whether more brackets are open at once than a message has; those within texts do not count.
bool nests_too_deep(const std::string& line) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_text && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_text = !in_text;
    } else if (!in_text && (c == '[' || c == '{')) {
      if (++depth > kDeepest) return true;
    } else if (!in_text && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

/// What a tool answered, as the protocol wants it: text for whoever reads, the document for
/// programs.
Ordered result_of(int code, const std::string& out, std::string err, bool full = true) {
  while (!err.empty() && err.back() == '\n') err.pop_back();
  Ordered document = Ordered::parse(out, nullptr, false);
  if (!full) document = brief_answer(document);
  const bool answered = !document.is_discarded() && document.is_object();
  // "Nothing fits" is an answer with a document, and stays one.
  const bool failed = code != 0 && !answered;
  Ordered content = Ordered::array();
  if (answered) content.push_back({{"type", "text"}, {"text", text_of(document)}});
  if (!err.empty() || content.empty()) {
    content.push_back(
        {{"type", "text"}, {"text", err.empty() ? fmt::format("ended with code {}", code) : err}});
  }
  Ordered result{{"content", std::move(content)}};
  if (answered) result["structuredContent"] = document;
  result["isError"] = failed || (code != 0 && code != static_cast<int>(ExitCode::kInfeasible));
  return result;
}

class McpServer {
 public:
  McpServer(const std::vector<McpTool>& tools, int in_fd, double time_limit_s,
            const std::function<void(const std::string&)>& send)
      : tools_(tools), in_fd_(in_fd), time_limit_s_(time_limit_s), send_(send) {}

  void serve();

 private:
  using Json = nlohmann::json;

  static constexpr double kLongestWait_s = 60;
  static constexpr std::size_t kLongestMessage = std::size_t{8} << 20;

  /// Reads what is there; messages go to `waiting_`.
  void receive();
  void take_line(const std::string& line);
  void answer(const Json& message);
  void call(const Json& id, const Json& params);
  /// Of what arrived while a call runs: answers pings, and says whether `id` was cancelled.
  bool cancelled(const Json& id);
  void reply(const Json& id, Ordered result);
  void refuse(const Json& id, int code, const std::string& sentence);

  const std::vector<McpTool>& tools_;
  int in_fd_;
  double time_limit_s_;
  const std::function<void(const std::string&)>& send_;
  std::string unread_;
  bool too_long_ = false;
  bool ended_ = false;
  std::deque<Json> waiting_;
};

void McpServer::serve() {
  while (!ended_ || !waiting_.empty()) {
    if (waiting_.empty()) {
      receive();
      continue;
    }
    const Json message = std::move(waiting_.front());
    waiting_.pop_front();
    answer(message);
  }
}

void McpServer::receive() {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(in_fd_, buffer.data(), buffer.size());
  if (got < 0 && errno == EINTR) return;
  if (got <= 0) {
    ended_ = true;
    return;
  }
  for (ssize_t i = 0; i < got; ++i) {
    const char c = buffer[static_cast<std::size_t>(i)];
    if (c == '\n') {
      if (too_long_) {
        refuse(nullptr, kNoRequest,
               fmt::format("a message is longer than {} bytes", kLongestMessage));
      } else {
        take_line(unread_);
      }
      unread_.clear();
      too_long_ = false;
    } else if (unread_.size() < kLongestMessage) {
      unread_ += c;
    } else {
      too_long_ = true;
    }
  }
}

void McpServer::take_line(const std::string& line) {
  if (line.find_first_not_of(" \t\r") == line.npos) return;
  const Json message =
      nests_too_deep(line) ? Json(Json::value_t::discarded) : parse_json(line, false);
  if (message.is_discarded()) return refuse(nullptr, kNoJson, "the line is no JSON");
  if (!message.is_object() || message.value("jsonrpc", Json()) != "2.0" ||
      (message.contains("method") && !message["method"].is_string())) {
    return refuse(nullptr, kNoRequest, "the line is no message of JSON-RPC 2.0");
  }
  if (message.contains("method")) waiting_.push_back(message);  // else an answer: nothing was asked
}

void McpServer::answer(const Json& message) {
  if (!message.contains("id")) return;  // a notification
  const Json& id = message["id"];
  const std::string method = message["method"].get<std::string>();
  const Json params = message.value("params", Json::object());
  if (method == "initialize") {
    std::string version(kVersions.front());
    if (params.is_object() && params.contains("protocolVersion") &&
        params["protocolVersion"].is_string()) {
      const std::string asked = params["protocolVersion"].get<std::string>();
      if (std::find(kVersions.begin(), kVersions.end(), asked) != kVersions.end()) version = asked;
    }
    return reply(id, {{"protocolVersion", version},
                      {"capabilities", {{"tools", {{"listChanged", false}}}}},
                      {"serverInfo",
                       {{"name", "shardwright"},
                        {"title", "Shardwright: plans of sharded training"},
                        {"version", build_info().version}}},
                      {"instructions",
                       "Predicts, tunes and sizes training of large language models. Names of "
                       "models and clusters: a wrong one is answered with the nearest that ship. "
                       "Further arguments of a tool: describe."}});
  }
  if (method == "ping") return reply(id, Ordered::object());
  if (method == "tools/list") {
    Ordered list = Ordered::array();
    for (const McpTool& tool : tools_) {
      list.push_back({{"name", tool.name},
                      {"title", tool.title},
                      {"description", tool.description},
                      {"inputSchema", input_schema(tool)},
                      {"annotations", {{"readOnlyHint", true}, {"openWorldHint", false}}}});
    }
    return reply(id, {{"tools", std::move(list)}});
  }
  if (method == "tools/call") return call(id, params);
  refuse(id, kNoMethod, fmt::format("there is no method '{}'", method));
}

void McpServer::call(const Json& id, const Json& params) {
  const std::string name =
      params.is_object() && params.contains("name") && params["name"].is_string()
          ? params["name"].get<std::string>()
          : "";
  const auto tool = std::find_if(tools_.begin(), tools_.end(),
                                 [&](const McpTool& known) { return known.name == name; });
  if (tool == tools_.end()) {
    return refuse(id, kNoParams,
                  fmt::format("there is no tool '{}', expected predict, explain, tune, size or {}",
                              name, kDescribe));
  }
  if (cancelled(id)) return;  // it waited behind another call
  try {
    const Json arguments = params.value("arguments", Json());
    if (tool->verb.empty())
      return reply(id, result_of(0, text_of(describe(tools_, arguments)), ""));
    const bool full = wants_all(arguments);
    Child child(own_command(arguments_of(*tool, arguments)));
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(time_limit_s_);
    while (child.running()) {
      const double left_s = std::chrono::duration<double>(end - Clock::now()).count();
      if (left_s <= 0) {
        child.kill();
        return reply(
            id,
            result_of(static_cast<int>(ExitCode::kFailed), "",
                      fmt::format("{} took longer than {:g} s and was ended; expected a smaller "
                                  "question, or a server with a longer --time-limit",
                                  name, time_limit_s_)));
      }
      if (!child.wait(ended_ ? -1 : in_fd_,
                      static_cast<int>(std::min(left_s, kLongestWait_s) * 1e3) + 1))
        continue;
      receive();
      if (!cancelled(id)) continue;
      child.kill();
      return;  // a cancelled call gets no answer
    }
    const int code = child.exit_code();
    reply(id, result_of(code, child.out(), child.err(), full));
  } catch (const Error& error) {
    reply(id, result_of(static_cast<int>(error.code()), "", error.what()));
  }
}

bool McpServer::cancelled(const Json& id) {
  bool found = false;
  std::deque<Json> later;
  for (Json& message : waiting_) {
    const std::string method = message["method"].get<std::string>();
    if (method == "ping") {
      answer(message);
    } else if (method == "notifications/cancelled") {
      const Json params = message.value("params", Json::object());
      const Json of = params.is_object() ? params.value("requestId", Json()) : Json();
      found = found || of == id;
      std::erase_if(later, [&](const Json& other) { return other.value("id", Json()) == of; });
    } else {
      later.push_back(std::move(message));
    }
  }
  waiting_ = std::move(later);
  return found;
}

void McpServer::reply(const Json& id, Ordered result) {
  send_(text_of({{"jsonrpc", "2.0"}, {"id", id}, {"result", std::move(result)}}));
}

void McpServer::refuse(const Json& id, int code, const std::string& sentence) {
  send_(text_of(
      {{"jsonrpc", "2.0"}, {"id", id}, {"error", {{"code", code}, {"message", sentence}}}}));
}

}  // namespace

void serve_mcp(const std::vector<McpTool>& tools, int in_fd, double time_limit_s,
               const std::function<void(const std::string&)>& send) {
  McpServer(tools, in_fd, time_limit_s, send).serve();
}

}  // namespace shardwright::cli
