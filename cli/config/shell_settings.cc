// SPDX-License-Identifier: Apache-2.0
// The flags in a shell script or on a line: "--tensor-model-parallel-size 8",
// "--training.seq_len=4096", "model.tensor_model_parallel_size=8". Variables that the script sets
// to a constant are filled in, and conditions that constants decide are decided; nothing is run,
// and what needs a shell to be known ("$((..))", "$(..)") stays as it stands. What is set under any
// other condition has "?" before its key, as in python_settings.cc.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "cli/config/setting.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli::settings_language {
namespace {

constexpr int kDeepestQuotes = 4;
constexpr std::size_t kLongestWord = 1 << 16;
constexpr std::size_t kMostWordBytes = std::size_t{32} << 20;  // variables filled in
constexpr std::size_t kLongestBraces = 1 << 12;

// The conditions of a shell script, as far as constants decide them. What stands under one that
// does not hold is not read; what stands under one that only running it would decide is kept apart.

using Words = std::vector<std::string>;

/// A variable that the script does not set stands as it was written.
bool is_unset(std::string_view word) {
  return word.find('$') != word.npos || word.find('`') != word.npos;
}

std::optional<bool> compared(const std::string& left, std::string_view how,
                             const std::string& right) {
  if (is_unset(left) || is_unset(right)) return std::nullopt;
  if (how == "=" || how == "==") {
    if (right.find('*') != right.npos) return std::nullopt;  // a pattern
    return left == right;
  }
  if (how == "!=" && right.find('*') == right.npos) return left != right;
  const std::optional<std::int64_t> a = parse_int64(left), b = parse_int64(right);
  if (!a || !b) return std::nullopt;
  if (how == "-eq") return *a == *b;
  if (how == "-ne") return *a != *b;
  if (how == "-gt") return *a > *b;
  if (how == "-ge") return *a >= *b;
  if (how == "-lt") return *a < *b;
  if (how == "-le") return *a <= *b;
  return std::nullopt;
}

/// Of words without && and ||.
std::optional<bool> truth_of_one(Words words) {
  std::erase_if(words, [](const std::string& word) {
    return word == "[" || word == "[[" || word == "]" || word == "]]" || word == "test" ||
           word == ";";
  });
  bool turned = false;
  while (!words.empty() && first_of(words, "a condition") == "!") {
    turned = !turned;
    words.erase(words.begin());
  }
  std::optional<bool> holds;
  if (words.size() == 1 && (words[0] == "true" || words[0] == "false")) {
    holds = words[0] == "true";
  } else if (!words.empty() && words.size() <= 2 && (words[0] == "-z" || words[0] == "-n")) {
    const bool unset = words.size() == 2 && is_unset(words[1]);
    const bool empty = unset || words.size() == 1 || words[1].empty();
    holds = empty == (words[0] == "-z");
    if (unset && holds == turned) return std::nullopt;  // its users may set it
  } else if (words.size() == 3) {
    holds = compared(words[0], words[1], words[2]);
  }
  return holds ? std::optional(*holds != turned) : holds;
}

/// Whether a condition holds, by its words with variables filled in: [ A = B ], [[ A == B && .. ]],
/// test, -eq and its like, -z and -n, && and ||. None: it is about anything else, or about a
/// variable that the script does not set; but that one is empty is believed, as "${A:-default}" is.
std::optional<bool> shell_truth(const Words& words) {
  std::optional<bool> all;
  bool first = true, conjunction = true;
  auto begin = words.begin();
  for (;;) {
    const auto end = std::find_if(
        begin, words.end(), [](const std::string& word) { return word == "&&" || word == "||"; });
    const std::optional<bool> one = truth_of_one(Words(begin, end));
    if (first) {
      all = one;
    } else {
      // What decides alone, decides beside what is not known.
      const bool alone = !conjunction;
      if (all == alone || one == alone) {
        all = alone;
      } else if (!all || !one) {
        all.reset();
      }
    }
    if (end == words.end()) return all;
    first = false;
    conjunction = *end == "&&";
    begin = end + 1;
  }
}

/// Whether a word is of a pattern of case.
std::optional<bool> shell_matches(const std::string& word, const std::string& pattern) {
  if (pattern == "*") return true;
  if (is_unset(word) || is_unset(pattern)) return std::nullopt;
  if (pattern.find_first_of("*?[") != pattern.npos) return std::nullopt;
  return word == pattern;
}

/// The conditions around the line that is read.
class ShellBranches {
 public:
  void begin(std::optional<bool> holds, std::string condition);      // if, case
  void otherwise(std::optional<bool> holds, std::string condition);  // elif, else
  void end();                                                        // fi, esac

  bool runs() const;     // no condition around it certainly fails
  bool certain() const;  // all certainly hold
  /// The innermost one that is not decided.
  std::string_view condition() const;

 private:
  struct Branch {
    std::optional<bool> holds;
    bool done = false;     // an earlier branch certainly runs
    bool perhaps = false;  // one may
    std::string condition;
  };
  static void enter(Branch& branch, std::optional<bool> holds, std::string condition);
  std::vector<Branch> branches_;
};

void ShellBranches::enter(Branch& branch, std::optional<bool> holds, std::string condition) {
  if (branch.done) {
    holds = false;
  } else if (branch.perhaps && holds.value_or(true)) {
    holds.reset();
  }
  branch.holds = holds;
  branch.done = branch.done || holds.value_or(false);
  branch.perhaps = branch.perhaps || !holds;
  branch.condition = std::move(condition);
}

void ShellBranches::begin(std::optional<bool> holds, std::string condition) {
  enter(branches_.emplace_back(), holds, std::move(condition));
}

void ShellBranches::otherwise(std::optional<bool> holds, std::string condition) {
  if (!branches_.empty()) enter(last_of(branches_, "else"), holds, std::move(condition));
}

void ShellBranches::end() {
  if (!branches_.empty()) branches_.pop_back();
}

bool ShellBranches::runs() const {
  return std::none_of(branches_.begin(), branches_.end(),
                      [](const Branch& branch) { return branch.holds == false; });
}

bool ShellBranches::certain() const {
  return std::all_of(branches_.begin(), branches_.end(),
                     [](const Branch& branch) { return branch.holds == true; });
}

std::string_view ShellBranches::condition() const {
  const auto open = std::find_if(branches_.rbegin(), branches_.rend(),
                                 [](const Branch& branch) { return !branch.holds; });
  return open == branches_.rend() ? std::string_view() : std::string_view(open->condition);
}

bool is_name(std::string_view word) {
  return !word.empty() && !(word[0] >= '0' && word[0] <= '9') &&
         std::all_of(word.begin(), word.end(), [](char c) {
           return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                  (c >= 'A' && c <= 'Z');
         });
}

/// "core_attn mlp": names and nothing else.
bool is_plain(std::string_view words) {
  return std::all_of(words.begin(), words.end(), [](char c) {
    return c == '_' || c == ' ' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

class ShellReader {
 public:
  explicit ShellReader(const std::string& name) : name_(name) {}

  void read(std::string_view text, int depth) {
    const std::vector<std::string> words = words_of(text);
    bool commands = depth == 0;  // what stands next is a command, not a word of one
    std::size_t guarded = 0;     // conditions that end with the line: [ A = B ] && ...
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (depth == 0 && word == ";" && i > 0 && words[i - 1] == ";")
        pattern_next_ = !subjects_.empty();
      if (depth == 0 && pattern_next_ && is_pattern(words, i)) {
        commands = true;
        continue;
      }
      if (commands && (begins_branch(words, i) || guards(words, i, guarded))) continue;
      commands = depth == 0 && ends_command(word);
      if (!branches_.runs()) continue;
      const std::size_t equals = word.find('=');
      if (word.starts_with("--") && word.size() > 2) {
        const std::string flag = word.substr(2, equals == word.npos ? word.npos : equals - 2);
        if (flag.find(' ') != flag.npos && depth < kDeepestQuotes) {
          read(word, depth + 1);  // "--fp8-format hybrid" of an array, which is unquoted later
        } else if (equals != word.npos) {
          keep(flag, word.substr(equals + 1));
        } else {
          std::string value;
          for (; i + 1 < words.size() && !is_flag(words[i + 1]) && words[i + 1] != "\n"; ++i) {
            // A list is one of names: behind a number stands what the flag does not concern.
            if (!value.empty() && !(is_plain(value) && is_plain(words[i + 1]))) break;
            value += (value.empty() ? "" : " ") + words[i + 1];
          }
          keep(flag, value.empty() ? "true" : value);
        }
      } else if (equals != word.npos && equals > 0) {
        std::string left = word.substr(0, equals);
        if (left.ends_with("+")) left.pop_back();
        while (left.starts_with("+")) left.erase(0, 1);
        if (!is_name(left)) continue;
        const std::string right = word.substr(equals + 1);
        if (left.find('.') != left.npos) {
          keep(left, right);
        } else if (right.find("--") != right.npos && depth < kDeepestQuotes) {
          read(right, depth + 1);
        } else if (branches_.certain()) {
          variables_[left] = right;
        } else {
          variables_.erase(left);  // nobody can tell which one it has
        }
      }
    }
    for (; guarded > 0; --guarded) branches_.end();
  }

  Settings take() { return std::move(settings_); }

 private:
  static bool ends_command(const std::string& word) {
    return word == ";" || word == "\n" || word == "&&" || word == "||" || word == "{" ||
           word == "then" || word == "else" || word == "do";
  }

  /// The words of a condition from `i` on, up to one of `ends`, or to the end of the line.
  static std::vector<std::string> condition_from(const std::vector<std::string>& words,
                                                 std::size_t& i,
                                                 std::initializer_list<std::string_view> ends) {
    std::vector<std::string> condition;
    for (; i < words.size(); ++i) {
      if (std::find(ends.begin(), ends.end(), words[i]) != ends.end()) break;
      if (words[i] != "\n") condition.push_back(words[i]);
    }
    return condition;
  }

  /// Whether the command at `i` is a word of if or case; leaves `i` at its last word.
  bool begins_branch(const std::vector<std::string>& words, std::size_t& i) {
    const std::string& word = words[i];
    if (word == "fi" || word == "esac") {
      branches_.end();
      if (word == "esac" && !subjects_.empty()) subjects_.pop_back();
      pattern_next_ = false;
    } else if (word == "else") {
      branches_.otherwise(true, "else");
    } else if (word == "case") {
      const std::vector<std::string> subject = condition_from(words, ++i, {"in"});
      subjects_.push_back(fmt::format("{}", fmt::join(subject, " ")));
      branches_.begin(false, "");  // nothing stands before the first pattern
      pattern_next_ = true;
    } else if (word == "if" || word == "elif") {
      const std::vector<std::string> words_of_it = condition_from(words, ++i, {"then"});
      // Python within a script, which no fi ends.
      if (i == words.size() && !words_of_it.empty() &&
          last_of(words_of_it, "a condition").ends_with(":"))
        return true;
      const std::string condition = fmt::format("{}", fmt::join(words_of_it, " "));
      if (word == "if") {
        branches_.begin(shell_truth(words_of_it), condition);
      } else {
        branches_.otherwise(shell_truth(words_of_it), condition);
      }
    } else {
      return word == "then" || word == "do" || word == ";";
    }
    return true;
  }

  /// Where a pattern of case may stand: "small|medium)", "*)"; leaves `i` at its last word.
  bool is_pattern(const std::vector<std::string>& words, std::size_t& i) {
    if (words[i] == "\n" || words[i] == ";" || words[i] == "esac") return false;
    std::string pattern = words[i];
    while (i + 2 < words.size() && words[i + 1] == "|") pattern += "|" + words[i += 2];
    pattern_next_ = false;
    const std::string& subject = last_of(subjects_, "the subject of case");
    std::optional<bool> holds = false;
    for (std::size_t at = 0; at <= pattern.size();) {
      const std::size_t end = std::min(pattern.find('|', at), pattern.size());
      const std::optional<bool> one = shell_matches(subject, pattern.substr(at, end - at));
      if (holds != true && one != false) holds = one;
      at = end + 1;
    }
    branches_.otherwise(holds, fmt::format("case {} is {}", subject, pattern));
    return true;
  }

  /// "[ A = B ] && ...": what follows on the line stands under that condition.
  bool guards(const std::vector<std::string>& words, std::size_t& i, std::size_t& guarded) {
    if (words[i] != "[" && words[i] != "[[") return false;
    const std::vector<std::string> condition = condition_from(words, i, {"]", "]]"});
    const bool and_then = i + 1 < words.size() && words[i + 1] == "&&";
    if (!and_then && (i + 1 >= words.size() || words[i + 1] != "||")) return true;
    ++i;
    std::optional<bool> holds = shell_truth(condition);
    if (holds && !and_then) holds = !*holds;
    branches_.begin(holds, fmt::format("{}{}", and_then ? "" : "not ", fmt::join(condition, " ")));
    ++guarded;
    return true;
  }

  static bool is_flag(const std::string& word) {
    if (word.starts_with("--")) return true;
    const bool number = word.size() > 1 && word[0] == '-' && word[1] >= '0' && word[1] <= '9';
    return (word.size() > 1 && word[0] == '-' && !number) || word == ";" || word == "&&" ||
           word == "||";
  }

  void keep(std::string key, std::string value) {
    std::replace(key.begin(), key.end(), '-', '_');
    if (!branches_.certain()) {
      key.insert(0, "?");
      value = fmt::format("{} if {}", value, branches_.condition());
    }
    add_setting(settings_, std::move(key), std::move(value), name_);
  }

  /// Words, with "\n" for the end of a line; parentheses of arrays separate words.
  std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words;
    std::string word;
    bool begun = false;
    char quote = 0;
    const auto finish = [&] {
      word_bytes_ += word.size();
      if (word_bytes_ > kMostWordBytes) {
        throw Error(fmt::format("{}: its variables make more than {} MiB of it", name_,
                                kMostWordBytes >> 20));
      }
      if (begun) words.push_back(std::exchange(word, {}));
      begun = false;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (word.size() > kLongestWord) throw Error(fmt::format("{}: a word has no end", name_));
      if (quote != 0) {
        if (c == quote) {
          quote = 0;
        } else if (c == '$' && quote == '"') {
          word += filled_in(text, i);
        } else {
          word += c;
        }
      } else if (c == '"' || c == '\'') {
        quote = c;
        begun = true;
      } else if (c == '\\' && i + 1 < text.size()) {
        if (text[++i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') ++i;
        if (text[i] != '\n') word += text[i], begun = true;
      } else if (c == '#' && !begun) {
        if (text.substr(i).starts_with("#SBATCH")) continue;  // says how many GPUs
        while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      } else if (c == '$') {
        word += filled_in(text, i);
        begun = true;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '(' || c == ')' ||
                 c == ';') {
        finish();
        // Within an array lines do not end what they hold, nor do they elsewhere here: a flag's
        // value stands on its own line.
        if (c == '\n' || c == ';') words.emplace_back(1, c);
      } else {
        word += c;
        begun = true;
      }
    }
    finish();
    return words;
  }

  static std::string unquoted(std::string_view text) {
    const bool quoted = text.size() >= 2 && ((text.starts_with('"') && text.ends_with('"')) ||
                                             (text.starts_with('\'') && text.ends_with('\'')));
    return std::string(quoted ? text.substr(1, text.size() - 2) : text);
  }

  /// "$NAME" or "${NAME}" or "${NAME:-default}" from its '$' on; leaves `i` at its last character.
  std::string filled_in(std::string_view text, std::size_t& i) const {
    const std::size_t begin = i;
    const bool braced = i + 1 < text.size() && text[i + 1] == '{';
    std::size_t end = i + (braced ? 2 : 1);
    const std::size_t name_begin = end;
    while (end < text.size() && end - name_begin < 256 && text[end] != '.' &&
           is_name(text.substr(name_begin, end - name_begin + 1))) {
      ++end;
    }
    const std::string name(text.substr(name_begin, end - name_begin));
    std::string otherwise;
    if (braced) {
      const std::size_t close = text.substr(0, end + kLongestBraces).find('}', end);
      if (close == text.npos || name.empty()) return "$";
      std::string_view rest = text.substr(end, close - end);
      if (rest.starts_with(":-") || rest.starts_with(":=")) otherwise = unquoted(rest.substr(2));
      end = close + 1;
    }
    if (name.empty()) return "$";
    i = end - 1;
    const auto known = known_variable(name);
    if (known) return *known;
    return otherwise.empty() ? std::string(text.substr(begin, end - begin)) : otherwise;
  }

  std::optional<std::string> known_variable(const std::string& name) const {
    const auto at = variables_.find(name);
    return at == variables_.end() ? std::nullopt : std::optional(at->second);
  }

  const std::string& name_;
  std::map<std::string, std::string> variables_;
  ShellBranches branches_;
  std::vector<std::string> subjects_;  // of case
  bool pattern_next_ = false;
  Settings settings_;
  std::size_t word_bytes_ = 0;
};

}  // namespace

Settings parse_shell(std::string_view text, const std::string& name) {
  ShellReader reader(name);
  // Line by line, because a variable is filled in below the line that sets it.
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = at;
    int open = 0;
    char quote = 0;
    for (; end < text.size(); ++end) {
      const char c = text[end];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '\\' && end + 1 < text.size()) {
        ++end;
      } else if (c == '#' && (end == at || text[end - 1] == ' ' || text[end - 1] == '\n')) {
        while (end + 1 < text.size() && text[end + 1] != '\n') ++end;
      } else if (c == '(') {
        ++open;
      } else if (c == ')' && open > 0) {
        --open;
      } else if (c == '\n' && open == 0) {
        break;
      }
    }
    reader.read(text.substr(at, end - at), 0);
    at = end + 1;
  }
  return reader.take();
}

}  // namespace shardwright::cli::settings_language
