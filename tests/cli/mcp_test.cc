// SPDX-License-Identifier: Apache-2.0

#include <map>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/read_file.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

/// What the server answers to these lines, by id; answers without one are under "none".
json answers(const std::vector<std::string>& lines, const std::string& flags = "") {
  const std::string path = (testing::temp_folder() / "frames").string();
  {
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
  }
  const ProgramResult result = run_program(
      {"/bin/sh", "-c", fmt::format("'{}' mcp {} < '{}'", SHARDWRIGHT_BINARY, flags, path)},
      {"LC_ALL=C"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  json by_id = json::object();
  std::size_t at = 0;
  while (at < result.out.size()) {
    const std::size_t end = result.out.find('\n', at);
    const json message = json::parse(result.out.substr(at, end - at));
    EXPECT_EQ(message.at("jsonrpc"), "2.0");
    const json& id = message.at("id");
    by_id[id.is_null() ? "none" : id.is_string() ? id.get<std::string>() : id.dump()] = message;
    at = end + 1;
  }
  return by_id;
}

std::string call(int id, const std::string& tool, const std::string& arguments) {
  return fmt::format(
      R"({{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"{}","arguments":{}}}}})",
      id, tool, arguments);
}

const char* const kHello =
    R"({"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26",)"
    R"("capabilities":{},"clientInfo":{"name":"test","version":"1"}}})";

TEST(Mcp, AnswersAsRecordedClientsExpect) {
  const json by_id = answers(
      {kHello, R"({"jsonrpc":"2.0","method":"notifications/initialized"})",
       R"({"jsonrpc":"2.0","id":"a","method":"ping"})",
       R"({"jsonrpc":"2.0","id":1,"method":"tools/list"})",
       call(
           2, "predict",
           R"({"model":"llama-3-8b","cluster":"dgx-h100","gpus":8,"seq_len":"4k","ckpt_layers":"all"})"),
       call(3, "explain", R"({"model":"llama-3-8b","cluster":"dgx-h100","ckpt_layers":"all"})")});
  EXPECT_EQ(by_id.at("0").at("result").at("protocolVersion"), "2025-03-26");
  EXPECT_EQ(by_id.at("0").at("result").at("serverInfo").at("name"), "shardwright");
  EXPECT_EQ(by_id.at("a").at("result"), json::object());
  std::vector<std::string> names;
  for (const json& tool : not_empty(by_id.at("1").at("result").at("tools"))) {
    names.push_back(tool.at("name"));
    EXPECT_EQ(tool.at("inputSchema").at("type"), "object");
    const json& properties = tool.at("inputSchema").at("properties");
    EXPECT_TRUE(properties.contains(tool.at("name") == "describe" ? "tool" : "model")) << tool;
    if (tool.at("name") == "tune") {
      EXPECT_EQ(properties.at("time_limit").at("type"), json({"number", "string"}));
    }
    for (const char* writes : {"out", "trace", "json", "help"})
      EXPECT_FALSE(properties.contains(writes));
    for (const json& needed : tool.at("inputSchema").at("required"))
      EXPECT_TRUE(properties.contains(needed.get<std::string>()));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("predict", "explain", "tune", "size", "describe"));
  // The same document as the command line's.
  const ProgramResult direct =
      run_program({SHARDWRIGHT_BINARY, "predict", "--model", "llama-3-8b", "--cluster", "dgx-h100",
                   "--gpus", "8", "--seq-len", "4096", "--ckpt-layers", "all", "--json"});
  const json& result = by_id.at("2").at("result");
  EXPECT_FALSE(result.at("isError"));
  EXPECT_EQ(result.at("structuredContent").at("iteration_time_s"),
            json::parse(direct.out).at("iteration_time_s"));
  EXPECT_EQ(json::parse(result.at("content")[0].at("text").get<std::string>()),
            result.at("structuredContent"));
  EXPECT_TRUE(by_id.at("3").at("result").at("structuredContent").contains("explanation"));
}

// Every conversation begins with the list of tools, whatever it is about: that is short, names
// every argument, and what it says nothing of, `describe` explains.
TEST(Mcp, TheListIsShortAndDescribeTellsTheRest) {
  const json by_id = answers(
      {kHello, R"({"jsonrpc":"2.0","id":1,"method":"tools/list"})",
       call(2, "describe", R"({"tool":"predict"})"), call(3, "describe", R"({"tool":"tune"})"),
       call(4, "describe", R"({"tool":"size"})"), call(5, "describe", R"({"tool":"explain"})"),
       call(6, "describe", R"({"tool":"predict","argument":"loss_chunks"})"),
       call(7, "describe", R"({"tool":"predict","argument":"loss_chunk"})"),
       call(8, "describe", R"({"tool":"describe"})"),
       call(9, "predict", R"({"model":"llama-3-8b","cluster":"dgx-h100","loss_chunks":4})")});
  const json& tools = by_id.at("1").at("result").at("tools");
  EXPECT_LT(tools.dump().size(), 8000U);
  const std::map<std::string, const char*> described = {
      {"predict", "2"}, {"tune", "3"}, {"size", "4"}, {"explain", "5"}};
  for (const json& tool : not_empty(tools)) {
    const auto answer = described.find(tool.at("name").get<std::string>());
    if (answer == described.end()) continue;
    const json& schema = tool.at("inputSchema");
    const json& result = by_id.at(answer->second).at("result");
    EXPECT_LT(result.at("content")[0].at("text").get<std::string>().size(), 8000U);
    const json& arguments = result.at("structuredContent").at("arguments");
    const std::string& others = schema.at("additionalProperties").at("description");
    EXPECT_GT(arguments.size(), 40U) << tool.at("name");
    for (const auto& [name, words] : not_empty(arguments.items())) {
      EXPECT_FALSE(words.get<std::string>().empty()) << name;
      const bool named = schema.at("properties").contains(name) || tool.at("name") == "explain" ||
                         (" " + others + " ").find(" " + name + " ") != std::string::npos;
      EXPECT_TRUE(named) << tool.at("name") << " " << name;
    }
  }
  EXPECT_EQ(by_id.at("6").at("result").at("structuredContent").at("arguments").size(), 1U);
  EXPECT_THAT(by_id.at("7").at("result").at("content")[0].at("text").get<std::string>(),
              HasSubstr("did you mean 'loss_chunks'?"));
  EXPECT_TRUE(by_id.at("8").at("result").at("isError"));
  EXPECT_FALSE(by_id.at("9").at("result").at("isError"));
}

// Assistants cut or refuse what is longer than some ten thousand words.
TEST(Mcp, AnswersAreShortUnlessAllIsAskedFor) {
  const std::string tune = R"("model":"llama-3-8b","cluster":"dgx-h100","gpus":16,"seq_len":"8k")";
  const std::string size =
      R"("model":"llama-3-8b","tokens":"1T","deadline":"60d","clusters":"dgx-h100,dgx-b200")";
  const std::string explain = R"("model":"llama-3-8b","cluster":"dgx-h100","gpus":8)";
  const json by_id = answers(
      {kHello, call(1, "tune", "{" + tune + "}"), call(2, "size", "{" + size + "}"),
       call(3, "explain", "{" + explain + "}"), call(4, "tune", "{" + tune + R"(,"full":true})"),
       call(5, "tune", R"({"full":"yes"})")});
  const auto result = [&](const char* id) { return by_id.at(id).at("result"); };
  for (const char* id : {"1", "2", "3"}) {
    const std::string text = result(id).at("content")[0].at("text");
    EXPECT_LT(text.size(), 8000U) << id;
    EXPECT_EQ(json::parse(text), result(id).at("structuredContent"));
  }
  const json tuned = result("1").at("structuredContent");
  EXPECT_TRUE(tuned.at("best").contains("plan"));
  EXPECT_FALSE(tuned.at("why").empty());
  EXPECT_TRUE(tuned.contains("shortened"));
  const json sized = result("2").at("structuredContent");
  EXPECT_GE(sized.at("summary").size(), 4U);
  EXPECT_GE(sized.at("best_of_each").size(), 2U);
  EXPECT_TRUE(sized.at("recommended").contains("cost_usd"));
  EXPECT_GT(result("4").at("content")[0].at("text").get<std::string>().size(), 8000U);
  EXPECT_FALSE(result("4").at("structuredContent").contains("shortened"));
  EXPECT_TRUE(result("5").at("isError"));
}

// What is short is no less right: intervals have both ends, no framework, no way out and none of
// the strategies that were to be compared is missing, and the sizes are those of the command line.
TEST(Mcp, ShortAnswersAreWholeInWhatTheySay) {
  const std::string size =
      R"("model":"llama-3-8b","tokens":"1T","deadline":"60d","clusters":"dgx-h100,dgx-b200,p4d","max_gpus":512)";
  const json by_id = answers(
      {kHello,
       call(1, "tune", R"({"model":"llama-3.1-8b","cluster":"dgx-h100","gpus":8,"seq_len":"8k"})"),
       call(2, "tune", R"({"model":"llama-3.1-8b","cluster":"rtx-4090-pcie8","gpus":1})"),
       call(
           3, "predict",
           R"({"model":"llama-3-8b","cluster":"dgx-h100","strategy":"yafsdp,fsdp2,ddp,zero3,fsdp1"})"),
       call(
           4, "explain",
           R"({"model":"deepseek-v3","cluster":"dgx-h100","gpus":1024,"pp":16,"ep":64,"global_batch":4096,"seq_len":4096})"),
       call(5, "size", "{" + size + "}")});
  const auto answer = [&](const char* id) {
    const json& result = by_id.at(id).at("result");
    EXPECT_FALSE(result.at("isError")) << result;
    EXPECT_LT(result.at("content")[0].at("text").get<std::string>().size(), 8000U) << id;
    return result.at("structuredContent");
  };
  const auto check_intervals = [](auto&& self, const json& node) -> void {
    for (const auto& [key, value] : node.items()) {
      if (node.is_object() && key.find("interval") != std::string::npos && value.is_array()) {
        EXPECT_EQ(value.size(), 2U) << key;
      }
      if (value.is_structured()) self(self, value);
    }
  };
  for (const char* id : {"1", "2", "3", "4", "5"}) check_intervals(check_intervals, answer(id));

  const json tuned = answer("1");
  EXPECT_EQ(tuned.at("frameworks").size(), 7U);
  for (const json& line : tuned.at("frameworks")) EXPECT_TRUE(line.contains("plan_words")) << line;
  EXPECT_TRUE(tuned.at("best").at("plan").contains("micro_batch"));
  EXPECT_GE(tuned.at("why").size(), 3U);
  const json refused = answer("2");
  EXPECT_EQ(refused.at("ways").size(), 4U);
  for (const json& way : refused.at("ways")) {
    EXPECT_TRUE(way.contains("flags") && way.contains("plan_words") && way.contains("verdict"));
  }
  EXPECT_EQ(answer("3").at("predictions").size(), 5U);
  EXPECT_EQ(answer("3")
                .at("predictions")[3]
                .at("inputs")
                .at("plan_words")
                .get<std::string>()
                .find("zero3"),
            0U);
  EXPECT_TRUE(answer("4").contains("explanation"));

  const ProgramResult direct = run_program(
      {SHARDWRIGHT_BINARY, "size", "--model", "llama-3-8b", "--tokens", "1T", "--deadline", "60d",
       "--clusters", "dgx-h100,dgx-b200,p4d", "--max-gpus", "512", "--json"});
  const json whole = json::parse(direct.out), sized = answer("5");
  EXPECT_EQ(sized.at("summary"), whole.at("summary"));
  ASSERT_EQ(sized.at("best_of_each").size(), whole.at("best_of_each").size());
  for (std::size_t i = 0; i < whole.at("best_of_each").size(); ++i) {
    for (const char* key : {"cluster", "gpus", "plan_words", "recommended"})
      EXPECT_EQ(sized.at("best_of_each")[i].at(key), whole.at("best_of_each")[i].at(key));
  }
}

TEST(Mcp, BadInputIsASentenceAndTheServerGoesOn) {
  const json by_id = answers(
      {kHello, "{broken", "[1]", R"({"id":1})", std::string(200, '[') + std::string(200, ']'),
       R"({"jsonrpc":"2.0","id":4,"method":"resources/list"})", call(5, "rm", "{}"),
       call(6, "predict", R"({"model":"llama-3-8b","cluster":"dgx-h200x"})"),
       call(7, "predict", R"({"modle":"llama-3-8b"})"), call(8, "predict", R"({"model":["a"]})"),
       call(9, "predict", R"({"model":"--help","cluster":"dgx-h100"})"), call(10, "predict", "[]"),
       call(
           11, "tune",
           R"({"model":"llama-3.1-405b","cluster":"dgx-h100","gpus":8,"seq_len":4096,"strategy":"fsdp2"})"),
       R"({"jsonrpc":"2.0","id":12,"method":"ping"})"});
  EXPECT_TRUE(by_id.contains("none"));
  EXPECT_EQ(by_id.at("4").at("error").at("code"), -32601);
  EXPECT_EQ(by_id.at("5").at("error").at("code"), -32602);
  const auto says = [&](const char* id, const std::string& words) {
    const json& result = by_id.at(id).at("result");
    EXPECT_TRUE(result.at("isError")) << result;
    EXPECT_THAT(result.at("content")[0].at("text").get<std::string>(), HasSubstr(words));
  };
  says("6", "dgx-h200x");
  says("7", "did you mean 'model'");
  says("8", "expected a number or a text");
  says("9", "--help");  // a value, not a flag
  says("10", "no object");
  // Nothing fits: an answer with what would.
  EXPECT_FALSE(by_id.at("11").at("result").at("isError")) << by_id.at("11");
  EXPECT_TRUE(by_id.at("11").at("result").at("structuredContent").contains("nearest_feasible"));
  EXPECT_TRUE(by_id.at("12").contains("result"));
}

TEST(Mcp, ReadsOnlyBelowItsFolder) {
  namespace fs = std::filesystem;
  const fs::path inside = testing::temp_folder() / "project",
                 outside = testing::temp_folder() / "home";
  fs::create_directories(inside);
  fs::create_directories(outside);
  const std::string model = read_file(profiles::data_dir() / "models" / "llama-3-8b.json", 1 << 20);
  write_file_atomically(inside / "mine.json", model);
  write_file_atomically(outside / "secret.json", model);
  fs::create_symlink(outside / "secret.json", inside / "link.json");
  // A file inside may name one outside.
  write_file_atomically(
      inside / "cluster.json",
      R"({"schema": "shardwright.cluster/1.0", "id": "cluster", "description": "x",
                            "base": "dgx-h100", "gpu": "../home/secret.json"})");
  const auto asked = [](int id, const std::string& model_path, const std::string& cluster) {
    return call(id, "predict",
                json{{"model", model_path}, {"cluster", cluster}, {"ckpt_layers", "all"}}.dump());
  };
  const json by_id = answers({kHello, asked(1, (inside / "mine.json").string(), "dgx-h100"),
                              asked(2, (outside / "secret.json").string(), "dgx-h100"),
                              asked(3, (inside / "link.json").string(), "dgx-h100"),
                              asked(4, (inside / "../home/secret.json").string(), "dgx-h100"),
                              asked(5, "llama-3-8b", (inside / "cluster.json").string()),
                              asked(6, "llama-3-8b", "dgx-h100")},
                             fmt::format("--root '{}'", inside.string()));
  for (const char* taken : {"1", "6"})
    EXPECT_FALSE(by_id.at(taken).at("result").at("isError")) << by_id.at(taken);
  for (const char* refused : {"2", "3", "4", "5"}) {
    const json& result = by_id.at(refused).at("result");
    EXPECT_TRUE(result.at("isError")) << refused;
    EXPECT_THAT(result.at("content")[0].at("text").get<std::string>(),
                HasSubstr("may not be read, expected a file below"));
  }
  expect_end(run_program({SHARDWRIGHT_BINARY, "mcp", "--root", "/no/folder"}), 3,
             {"--root is '/no/folder'"});
}

TEST(Mcp, ACallThatTakesTooLongIsEndedWithASentence) {
  const json by_id =
      answers({kHello, call(1, "size", R"({"model":"llama-3.1-405b","tokens":"15T"})"),
               R"({"jsonrpc":"2.0","id":2,"method":"ping"})"},
              "--time-limit 0.05");
  const json& result = by_id.at("1").at("result");
  EXPECT_TRUE(result.at("isError"));
  EXPECT_THAT(result.at("content")[0].at("text").get<std::string>(),
              HasSubstr("size took longer than 0.05 s and was ended"));
  EXPECT_TRUE(by_id.contains("2"));
}

TEST(Mcp, ACancelledCallEndsAndIsNotAnswered) {
  // In the same process as the frames: the cancellation is there before the search is over.
  const json by_id = answers(
      {kHello, call(1, "size", R"({"model":"llama-3.1-405b","tokens":"15T"})"),
       R"({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}})",
       call(2, "predict", R"({"model":"llama-3-8b","cluster":"dgx-h100"})"),
       R"({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}})"});
  EXPECT_FALSE(by_id.contains("1"));
  EXPECT_TRUE(by_id.contains("2"));
}

}  // namespace
}  // namespace shardwright::cli
