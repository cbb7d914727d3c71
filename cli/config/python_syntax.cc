// SPDX-License-Identifier: Apache-2.0
#include "cli/config/python_syntax.h"

#include <utility>

#include "cli/config/python_expressions.h"

namespace shardwright::cli::settings_language {
namespace {

using Word = PythonWord::Kind;
using Does = PythonStatement::Kind;

class Statements : public PythonExpressions {
 public:
  using PythonExpressions::PythonExpressions;

  PythonBody read() {
    PythonBody body;
    while (word().kind != Word::kEnd) line(body);
    return body;
  }

 private:
  /// A statement, or indentation that belongs to none.
  void line(PythonBody& body) {
    const std::size_t before = at_;
    if (word().kind == Word::kIndent || word().kind == Word::kDedent) {
      pass();
    } else {
      statement(body);
    }
    if (at_ == before) pass();
  }

  void statement(PythonBody& body) {
    if (is("@")) return pass_line();
    take("async");
    const bool a_name = is("=", 1) || is(".", 1) || is("(", 1);  // match = 1
    if (is("def")) {
      body.push_back(function());
    } else if (is("class")) {
      pass_head();
      static_cast<void>(block());
    } else if (is("if")) {
      body.push_back(condition());
    } else if (is("for") || is("while") || is("except") || (is("match") && !a_name) ||
               (is("case") && !a_name)) {
      body.push_back(perhaps());
    } else if (is("with") || is("try") || is("finally") || is("else")) {
      PythonStatement made;
      made.kind = Does::kBlock;
      pass_head();
      made.body = block();
      body.push_back(std::move(made));
    } else if (is("from") || is("import")) {
      imports(body);
    } else {
      simple(body);
    }
  }

  /// One statement of a line, and the ";" or the end behind it.
  void simple(PythonBody& body) {
    PythonStatement made;
    if (take("return")) {
      made.kind = Does::kReturn;
      if (!ends_line()) made.value = expressions();
    } else if (is("assert") || is("raise") || is("del") || is("global") || is("nonlocal")) {
      while (!ends_line() && !is(";")) pass();
    } else {
      assignment(made);
    }
    body.push_back(std::move(made));
    while (!ends_line() && !is(";")) pass();
    if (is(";") || word().kind == Word::kNewline) pass();
  }

  void assignment(PythonStatement& made) {
    made.value = expressions();
    if (take(":")) static_cast<void>(expression());  // the type of a name
    if (!is("=") && !augments()) return;
    made.kind = Does::kAssign;
    if (!is("=")) {  // x += 1
      made.targets.push_back(std::move(made.value));
      made.value = make(PythonExpression::Kind::kOther, {}, at_);
      return;
    }
    while (take("=")) {
      made.targets.push_back(std::move(made.value));
      made.value = expressions();
    }
    // Part of a longer expression that is not known here is none.
    if (!ends_line() && !is(";")) made.value = make(PythonExpression::Kind::kOther, {}, at_);
  }

  /// "+=" and its like; comparisons are part of what stands before.
  bool augments() const {
    return word().kind == Word::kSymbol && word().text.size() > 1 && word().text.ends_with('=');
  }

  void pass_line() {
    while (!ends_line()) pass();
    if (word().kind == Word::kNewline) pass();
  }

  /// To the colon that opens a block.
  void pass_head() {
    while (!ends_line() && !is(":")) pass_one();
  }

  PythonBody block() {
    PythonBody body;
    take(":");
    if (word().kind != Word::kNewline) {
      do simple(body);
      while (last().text == ";");
      return body;
    }
    pass();
    if (word().kind != Word::kIndent) return body;
    pass();
    int deeper = 0;
    while (word().kind != Word::kEnd) {
      if (word().kind == Word::kIndent) ++deeper;
      if (word().kind == Word::kDedent && deeper-- == 0) {
        pass();
        break;
      }
      line(body);
    }
    return body;
  }

  PythonStatement function() {
    PythonStatement made;
    made.kind = Does::kFunction;
    pass();
    made.name = word().text;
    pass();
    if (take("(")) {
      while (!ends_bracket()) {
        PythonParameter parameter;
        const std::size_t from = at_;
        if (!take("**")) take("*");
        take("/");
        if (word().kind == Word::kName) pass();
        parameter.name = source(from);
        if (take(":")) static_cast<void>(expression());
        if (take("=")) parameter.otherwise = expression();
        while (!ends_bracket() && !is(",")) pass_one();
        take(",");
        made.parameters.push_back(std::move(parameter));
      }
      take(")");
    }
    pass_head();
    made.body = block();
    return made;
  }

  PythonStatement condition() {
    const Deeper deeper(*this);
    PythonStatement made;
    made.kind = Does::kIf;
    pass();
    made.value = expression();
    pass_head();
    made.body = block();
    if (is("elif")) {
      made.otherwise.push_back(condition());
    } else if (take("else")) {
      made.otherwise = block();
    }
    return made;
  }

  PythonStatement perhaps() {
    PythonStatement made;
    made.kind = Does::kPerhaps;
    const std::size_t from = at_;
    pass_head();
    made.value = make(PythonExpression::Kind::kOther, {}, from);
    made.body = block();
    return made;
  }

  void imports(PythonBody& body) {
    PythonStatement made;
    made.kind = Does::kImport;
    if (take("from")) {
      const std::size_t from = at_;
      while (is(".") || (word().kind == Word::kName && !is("import"))) pass();
      const std::string_view module = source(from);
      take("import");
      take("(");
      while (word().kind == Word::kName) {
        PythonImport one{module, word().text, word().text};
        pass();
        if (take("as")) {
          one.as = word().text;
          pass();
        }
        made.imports.push_back(one);
        if (!take(",")) break;
      }
    }
    body.push_back(std::move(made));
    pass_line();
  }
};

}  // namespace

std::unique_ptr<PythonModule> parse_python_module(std::string_view text, const std::string& name) {
  auto module = std::make_unique<PythonModule>();
  module->text = std::string(text);
  module->body = Statements(*module, name).read();
  return module;
}

}  // namespace shardwright::cli::settings_language
