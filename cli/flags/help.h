// How --help looks: two columns within 100, long descriptions wrapped under themselves.
#pragma once

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace shardwright::cli {

/// To set on the root before any verb is added; the verbs inherit it.
std::shared_ptr<CLI::FormatterBase> make_help_formatter();

}  // namespace shardwright::cli
