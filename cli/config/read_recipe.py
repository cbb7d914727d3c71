# SPDX-License-Identifier: Apache-2.0
"""What a trainer's Python module of settings comes to, as far as it can be told without running it.

  python3 -I -S -c SCRIPT NAME FUNCTION FOLDER <MODULE     prints [[key, value], ...] as JSON

The module is read by `ast` and by nothing else: constants are folded, functions of it (and of modules beside it, where
the file lies in its package, FOLDER) are followed with the arguments that they are called with, and conditions that
constants decide are decided. What depends on anything else stays unknown and keeps its text: a reader that needs it
refuses it by that text. What is set under a condition that is not decided is kept apart, with "?" before its key.

  from torchtitan.models.llama3.config_registry import llama3_8b as flavor     module, config
  def llama3_8b():
      config = flavor()
      config.training.seq_len = 4096                                       training.seq_len
      config.compile = CompileConfig("all", enable=True)                   compile: CompileConfig(all), compile.enable

What a function returns, or sets attributes of, is the whole config. A call is the value of its key, with its first
argument where that is plain, and its keyword arguments are keys below it. Of scripts that import Unsloth all that calls
outside of functions are given counts. "begins_with" names the function of another module that a config begins from,
where that module is not at hand. Ends with 3 and a sentence where a module is refused, with 5 where Python is too old.
"""
import ast
import io
import json
import operator
import os
import sys
import tokenize

MOST_BYTES, MOST_WORDS, LONGEST_WORD = 4 << 20, 400_000, 10_000
MOST_PARTS, DEEPEST_BRACKET, DEEPEST_BLOCK = 1000, 90, 60
MOST_STEPS, DEEPEST_CALL, MOST_MODULES, MOST_FOLDERS = 200_000, 16, 24, 10
LONGEST_SOURCE, LONGEST_VALUE, LONGEST_KEY, DEEPEST_KEY, MOST_KEYS = 200, 4096, 1024, 64, 40_000
NUMBERS, LARGEST = (int, float), 1 << 63  # larger ones are no settings
COMPARES = {ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le, ast.GtE: operator.ge}
DIVIDES = {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
FOLDS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, **DIVIDES,
         ast.Pow: lambda base, power: 1 << power if base == 2 and power in range(63) else LARGEST}


class Refused(Exception):
    pass


class Unknown:
    def __init__(self, text):
        self.text = text


class Listed:
    def __init__(self, text, items):
        self.text, self.items = text, items


class Made:
    """What a call makes: what it is given, and what is set on it."""

    def __init__(self, text=""):
        self.text, self.fields, self.perhaps, self.begins = text, {}, {}, ""

    def set(self, key, value):
        self.perhaps.pop(key, None)
        self.fields[key] = value


NOTHING = Unknown("")  # no value, not even None


def refuse_if(wrong, sentence):
    if wrong:
        raise Refused(sentence)


def text_of(value):
    """As a setting says it: digits, a string's text, "FullAC.Config()" of a call, an unknown's source."""
    if isinstance(value, (Unknown, Listed, Made)):
        return value.text
    return value if isinstance(value, str) else json.dumps(value).removesuffix(".0")


def truth(value):
    """Whether a condition holds; None where that is not known."""
    known = not isinstance(value, (Unknown, Made))
    return bool(value.items if isinstance(value, Listed) else value) if known else None


def equal(a, b):
    """Whether they are the same; None where that is not known."""
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return None
    if type(a) is not type(b) and not (isinstance(a, NUMBERS) and isinstance(b, NUMBERS)):
        return False
    return None if isinstance(a, (Made, Listed)) and a is not b else a == b


def dotted_name(node):
    """"a.b.c" of names alone, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted_name(node.value) if isinstance(node, ast.Attribute) else ""
    return before and f"{before}.{node.attr}"


def hands_on(callee, given):
    """Whether it hands on the settings that it is given: copies, "to_graph_trainer_config(base)"."""
    name = callee.split(".")[-1]
    return bool(given) and isinstance(given[0], Made) and (
        name in ("deepcopy", "copy", "replace", "get_peft_model") or name.startswith("to_") and name.endswith("config"))


def check_words(text, count):
    """Bounds what the parser is given, which recurses in C. Returns the number of words so far."""
    parts, elifs, begins = [0], [0], True  # of the brackets and of the blocks around a word
    try:
        for word in tokenize.generate_tokens(io.StringIO(text).readline):
            is_part = word.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER)
            count, what = count + 1, word.string if is_part else ""
            parts[-1] += is_part
            if word.type == tokenize.NEWLINE:
                parts = [0]
            elif word.type == tokenize.INDENT:
                elifs.append(0)
            elif word.type == tokenize.DEDENT:
                elifs.pop()
            elif what in ("(", "[", "{"):
                parts.append(0)
            elif what in (")", "]", "}") and len(parts) > 1:
                parts.pop()
            elif what == ";" or what == "," and len(parts) > 1:
                parts[-1] = 0
            elif begins and what in ("if", "elif"):
                elifs[-1] = elifs[-1] + 1 if what == "elif" else 0
            begins = not is_part and word.type != tokenize.STRING
            line = f"line {word.start[0]}: "
            refuse_if(count > MOST_WORDS, f"holds more than {MOST_WORDS} words of Python")
            is_long = len(word.string) > LONGEST_WORD and word.string[0] not in "\"'#"
            refuse_if(is_long, line + f"holds a word of more than {LONGEST_WORD} letters")
            refuse_if(len(parts) > DEEPEST_BRACKET, line + "calls nest too deeply")
            refuse_if(sum(parts) > MOST_PARTS, line + f"holds an expression of more than {MOST_PARTS} words")
            refuse_if(sum(elifs) + len(elifs) > DEEPEST_BLOCK, line + "blocks nest too deeply")
    except (tokenize.TokenError, SyntaxError):
        pass  # which the parser says better
    return count


class Scope:
    def __init__(self, module):
        self.module, self.names, self.returned, self.perhaps_returned = module, {}, NOTHING, NOTHING
        self.roots, self.ended = {}, False  # roots: what something is set on, whoever made it
        self.condition = ""  # not decided; empty: what stands here runs


class Module(Scope):
    def __init__(self, text, folder):
        super().__init__(self)
        self.folder, self.functions, self.imports = folder, {}, {}
        self.bytes, self.begins = text.encode("utf-8", "replace"), [0]
        for line in self.bytes.splitlines(True):
            self.begins.append(self.begins[-1] + len(line))
        try:
            self.body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line, why = getattr(error, "lineno", None) or 1, getattr(error, "msg", error)
            raise Refused("line {}: is no Python {}.{} ({})".format(line, *sys.version_info[:2], why))

    def source(self, first, last=None):
        """What stands from one node to another, on one line."""
        begin = self.begins[first.lineno - 1] + first.col_offset
        end = self.begins[(last or first).end_lineno - 1] + (last or first).end_col_offset
        return " ".join(self.bytes[begin:min(end, begin + LONGEST_SOURCE)].decode("utf-8", "ignore").split())


class Evaluator:
    def __init__(self):
        self.modules, self.found, self.words, self.steps, self.depth, self.reading = {}, {}, 0, 0, 0, ""

    def step(self, count=1):
        self.steps += count
        refuse_if(self.steps > MOST_STEPS, "its functions call each other too often to be followed")

    def kept(self, text):
        self.step(1 + len(text) // 64)
        return text[:LONGEST_VALUE]

    def value_of(self, node, scope):
        self.step()
        value = getattr(self, "of_" + type(node).__name__, lambda node, scope: NOTHING)(node, scope)
        return Unknown(scope.module.source(node)) if value is NOTHING else value

    def of_Constant(self, node, scope):
        value = node.value
        if isinstance(value, str):
            return self.kept(value)
        return value if value is None or isinstance(value, NUMBERS) and value < LARGEST else NOTHING

    def of_Name(self, node, scope):
        for names in (scope.names, scope.module.names, {"__name__": "__main__"}):
            if node.id in names:
                return names[node.id]
        module, name = scope.module.imports.get(node.id, ("", ""))  # a constant of another module
        other = self.find_module(scope.module, module)
        return other.names.get(name, NOTHING) if other else NOTHING

    def of_Attribute(self, node, scope):
        on = self.value_of(node.value, scope)
        return on.fields.get(node.attr, NOTHING) if isinstance(on, Made) else NOTHING

    def of_Subscript(self, node, scope):
        on, index = self.value_of(node.value, scope), self.value_of(node.slice, scope)
        if isinstance(on, Listed) and type(index) is int and 0 <= index < len(on.items):
            return on.items[index]
        known = isinstance(on, Made) and not isinstance(index, Unknown)
        return on.fields.get(text_of(index), NOTHING) if known else NOTHING

    def of_IfExp(self, node, scope):
        holds = truth(self.value_of(node.test, scope))
        return NOTHING if holds is None else self.value_of(node.body if holds else node.orelse, scope)

    def of_List(self, node, scope):
        is_known = not isinstance(node, ast.ListComp)
        items = self.values_of(node.elts, scope) if is_known else [Unknown(scope.module.source(node))]
        key = ",".join(text_of(item)[:LONGEST_SOURCE] for item in items[:4])  # of a map: "4,1"
        return Listed(key if len(items) <= 4 else scope.module.source(node), items)

    of_Tuple = of_Set = of_ListComp = of_List

    def values_of(self, nodes, scope):
        items = []
        for node in nodes:
            spread = isinstance(node, ast.Starred)
            value = self.value_of(node.value if spread else node, scope)
            items += value.items if spread and isinstance(value, Listed) else [value]
            self.step(len(items) // 64)
        return items

    def of_Dict(self, node, scope):
        made = Made()
        for key, part in zip(node.keys, node.values):
            value = self.value_of(part, scope)
            if key:
                made.set(text_of(self.value_of(key, scope)), value)
            elif isinstance(value, Made):
                self.update(made, value.fields.items())
        return made

    def of_UnaryOp(self, node, scope):
        value = self.value_of(node.operand, scope)
        if isinstance(node.op, ast.USub) and isinstance(value, NUMBERS):
            return -value
        holds = truth(value) if isinstance(node.op, ast.Not) else None
        return NOTHING if holds is None else not holds

    def of_BoolOp(self, node, scope):
        ends, sure = isinstance(node.op, ast.Or), True  # what decides it
        for part in node.values:
            value = self.value_of(part, scope)
            if truth(value) is ends:
                return value if sure else ends
            sure = sure and truth(value) is not None
        return value if sure else NOTHING

    def of_Compare(self, node, scope):
        op, left, right = node.ops[0], self.value_of(node.left, scope), self.value_of(node.comparators[0], scope)
        if type(op) in COMPARES or len(node.ops) > 1:
            known = len(node.ops) == 1 and isinstance(left, NUMBERS) and isinstance(right, NUMBERS)
            return COMPARES[type(op)](left, right) if known else NOTHING
        if not isinstance(op, (ast.In, ast.NotIn)):
            each = [equal(left, right)]
        elif isinstance(left, str) and isinstance(right, str):
            each = [left in right]
        else:
            each = [equal(left, item) for item in right.items] if isinstance(right, Listed) else [None]
        self.step(len(each))
        holds = isinstance(op, (ast.Eq, ast.Is, ast.In))
        return holds if True in each else NOTHING if None in each else not holds

    def of_BinOp(self, node, scope):
        op, left, right = type(node.op), self.value_of(node.left, scope), self.value_of(node.right, scope)
        if op is ast.Add and isinstance(left, str) and isinstance(right, str):
            return left + right if len(left) + len(right) <= LONGEST_SOURCE else NOTHING
        known = isinstance(left, NUMBERS) and isinstance(right, NUMBERS) and (right or op not in DIVIDES)
        value = FOLDS[op](left, right) if known and op in FOLDS else LARGEST
        return value if abs(value) < LARGEST else NOTHING

    def of_Call(self, node, scope):
        callee, func, given, named = dotted_name(node.func), node.func, self.values_of(node.args, scope), []
        for part in node.keywords:
            value = self.value_of(part.value, scope)
            named += [(part.arg, value)] if part.arg else value.fields.items() if isinstance(value, Made) else []
        known = self.known_function(callee, given, named)
        if known is not NOTHING:
            return known
        if not callee or isinstance(func, ast.Attribute) and callee.split(".")[0] in scope.names:
            return self.method(func, given, named, scope)
        # A registry says what it holds by its argument.
        if not hands_on(callee, given) and callee not in scope.names and "registry" not in callee:
            module, function = self.find_function(scope.module, callee)
            value = self.follow(module, function, callee, given, named)[0] if function else NOTHING
            if value is not NOTHING:
                return value
        made = self.opaque(callee, given, named)
        module, name = scope.module.imports.get(callee, ("", "A"))
        if not hands_on(callee, given) and not name[0].isupper():
            made.begins = f"{module}.{name}"
        return made

    def update(self, made, fields):
        self.step(1 + len(fields))
        for key, value in list(fields):
            made.set(key, value)
        return made

    def opaque(self, callee, given, named):
        first = text_of(given[0]) if given and (isinstance(given[0], str) or type(given[0]) is int) else ""
        made = Made(self.kept(f"{callee}({first})"))
        if hands_on(callee, given):
            self.update(made, given[0].fields.items())
            made.perhaps, made.begins = dict(given[0].perhaps), given[0].begins
        return self.update(made, named)

    def known_function(self, name, given, named):
        """Its value; NOTHING where it is none that is known."""
        first, second = (given + [NOTHING] * 2)[:2]
        one, two = len(given) == 1, len(given) == 2
        if name in ("dict", "SimpleNamespace"):
            return self.update(Made(), named)
        if one and name in ("int", "float", "str", "bool") and not isinstance(first, (Made, Listed)):
            return first
        if one and name == "len" and isinstance(first, Listed):
            return len(first.items)
        if two and name in ("cast", "typing.cast", "os.environ.get", "os.getenv"):
            return second
        if two and name in ("max", "min") and type(first) is type(second) is int:
            return max(given) if name == "max" else min(given)
        if two and name == "isinstance":
            kind = {"str": str, "int": int}.get(text_of(second))
            known = not isinstance(first, (Unknown, Made)) and (kind or text_of(second)[:1].isupper())
            # What is plain is of no class of theirs.
            return isinstance(first, kind or ()) if known else Unknown(name)
        return NOTHING

    def method(self, func, given, named, scope):
        """What is called on a value: of strings and maps what is known, else the text of it."""
        name = getattr(func, "attr", "")
        on = self.value_of(func.value if isinstance(func, ast.Attribute) else func, scope)
        if isinstance(on, str) and name in ("lower", "strip"):
            return getattr(on, name)()
        callee = f"{text_of(on)}.{name}" if name else text_of(on) or "call"
        made = self.opaque(callee, [on] if name == "copy" else given, named)
        if isinstance(on, Made) and name == "get" and given and not isinstance(given[0], Unknown):
            return on.fields.get(text_of(given[0]), given[1] if len(given) == 2 and not on.text else made)
        if isinstance(on, Made) and name == "update" and not scope.condition:
            for more in given:
                self.update(on, more.fields.items() if isinstance(more, Made) else [])
            self.update(on, named)
        return made

    def bind(self, arguments, given, named, scope):
        places, rest, outside = arguments.posonlyargs + arguments.args, Made(), Scope(scope.module)
        defaults = [None] * (len(places) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
        known = [place.arg for place in places + arguments.kwonlyargs]
        for name, default in zip(known, defaults):
            if default:
                scope.names[name] = self.value_of(default, outside)
        scope.names.update(zip(known[:len(places)], given))
        scope.names.update((key, value) for key, value in named if key in known)
        self.update(rest, [(key, value) for key, value in named if key not in known])
        if arguments.kwarg:
            scope.names[arguments.kwarg.arg] = rest

    def follow(self, module, function, callee, given, named):
        """What it returns, NOTHING where that says nothing; and what it sets things on besides."""
        if self.depth >= DEEPEST_CALL:
            return NOTHING, {}
        self.depth += 1
        scope = Scope(module)
        self.bind(function.args, given, named, scope)
        self.run(function.body, scope)
        self.depth -= 1
        value = scope.perhaps_returned if scope.returned is NOTHING else scope.returned
        if isinstance(value, Made) and callee and (not value.text or value.text[0].isupper()):
            # As a setting it is called what made it: "bf16_mixed()".
            first = given[0] if given and isinstance(given[0], str) else ""
            value.text = self.kept(f"{callee}({first}) -> {value.text}")
        return value, scope.roots

    def find_function(self, module, name, depth=0):
        if name in module.functions or name not in module.imports or depth > 3:
            return module, module.functions.get(name)
        where, name = module.imports[name]
        other = self.find_module(module, where)
        return self.find_function(other, name, depth + 1) if other else (module, None)

    def find_module(self, source, dotted):
        """A module of that name in a folder that the file lies below; names have no ".."."""
        key = source.folder, dotted
        if all(key) and key not in self.found:
            path = dotted.lstrip(".")
            up, found = len(dotted) - len(path), None
            folder = os.path.normpath(os.path.join(source.folder, *[os.pardir] * (up - 1)))
            for _ in range(1 if up else MOST_FOLDERS):
                place = os.path.join(folder, path.replace(".", os.sep))
                found = found or path and self.load(place + ".py") or self.load(os.path.join(place, "__init__.py"))
                folder = os.path.dirname(folder)
            self.found[key] = found
        return self.found.get(key)

    def load(self, path):
        path = os.path.normpath(path)
        is_there = os.path.isfile(path) and os.access(path, os.R_OK)
        if is_there and path not in self.modules and len(self.modules) < MOST_MODULES:
            with open(path, "rb") as file:
                self.read(file.read(MOST_BYTES + 1), path, os.path.dirname(path))
        return self.modules.get(path)

    def read(self, text, path, folder):
        self.reading = path
        refuse_if(len(text) > MOST_BYTES, f"has more than {MOST_BYTES} bytes")
        text = text.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
        self.words = check_words(text, self.words)
        module = self.modules[path] = Module(text, folder)
        self.reading = ""
        self.run(module.body, module)
        return module

    def run(self, body, scope):
        for node in body:
            if scope.ended:
                return
            self.step()
            getattr(self, "run_" + type(node).__name__, lambda node, scope: None)(node, scope)

    def run_perhaps(self, body, condition, scope):
        before = scope.condition
        scope.condition = before or condition[:80]
        self.run(body, scope)
        scope.condition, scope.ended = before, False

    def run_Assign(self, node, scope):
        value = node.value
        if isinstance(node, ast.AugAssign):
            value = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        value = self.value_of(value, scope) if value else NOTHING
        for target in getattr(node, "targets", [getattr(node, "target", None)]) if value is not NOTHING else []:
            self.assign(target, value, scope)

    def run_If(self, node, scope):
        holds = truth(self.value_of(node.test, scope))
        if holds is not None:
            return self.run(node.body if holds else node.orelse, scope)
        condition = scope.module.source(node.test)
        self.run_perhaps(node.body, condition, scope)
        self.run_perhaps(node.orelse, f"not {condition}", scope)

    def run_Return(self, node, scope):
        value = self.value_of(node.value, scope) if node.value else None
        setattr(scope, "perhaps_returned" if scope.condition else "returned", value)
        scope.ended = True

    def run_FunctionDef(self, node, scope):
        scope.module.functions.setdefault(node.name, node)

    def run_ImportFrom(self, node, scope):
        for one in node.names:
            scope.module.imports[one.asname or one.name] = ("." * node.level + (node.module or ""), one.name)

    def run_Try(self, node, scope):
        self.run(node.body, scope)
        for handler in getattr(node, "handlers", []):
            self.run_perhaps(handler.body, scope.module.source(handler, handler.type or handler), scope)
        self.run(getattr(node, "orelse", []) + getattr(node, "finalbody", []), scope)

    def run_For(self, node, scope):
        head = next(getattr(node, part) for part in ("iter", "test", "subject") if hasattr(node, part))
        for part in getattr(node, "cases", [node]):
            self.run_perhaps(part.body, scope.module.source(node, head), scope)
        self.run(getattr(node, "orelse", []), scope)

    run_Expr = run_AnnAssign = run_AugAssign = run_Assign
    run_While = run_AsyncFor = run_Match = run_For
    run_With = run_AsyncWith = run_TryStar = run_Try
    run_AsyncFunctionDef = run_FunctionDef

    def assign(self, target, value, scope):
        if isinstance(target, ast.Name):
            if not scope.condition or target.id not in scope.names:
                scope.names[target.id] = value
            elif not isinstance(scope.names[target.id], Made):
                scope.names[target.id] = Unknown(self.kept(f"{text_of(value)} if {scope.condition}"))
        elif isinstance(target, (ast.Tuple, ast.List)):
            # "model, tokenizer = from_pretrained(...)": the first is what the call makes.
            items = value.items if isinstance(value, Listed) else [value] if isinstance(value, Made) else []
            for i, part in enumerate(target.elts):
                item = items[i] if i < len(items) else Unknown(self.kept(f"{text_of(value)}[{i}]"))
                self.assign(part, item, scope)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            key = getattr(target, "attr", None) or text_of(self.value_of(target.slice, scope))
            made = self.made_at(target.value, scope)
            if made and scope.condition:
                text = self.kept(f"{text_of(value)} if {scope.condition}")
                made.perhaps[key] = [*made.perhaps.get(key, []), text]
            elif made:
                made.set(key, value)

    def made_at(self, node, scope):
        """What an attribute is set on, made where there is none, with the text of what stood there ("bf16_mixed")."""
        if isinstance(node, ast.Name):
            made = scope.names.get(node.id)
            if not isinstance(made, Made):
                if node.id not in scope.names and node.id in scope.module.names:
                    return None  # a value of the whole module, which others see as well
                made = scope.names[node.id] = Made()
            scope.roots[made] = True
            return made
        outer = self.made_at(node.value, scope) if isinstance(node, ast.Attribute) else None
        inner = outer.fields.get(node.attr) if outer else None
        if outer and not isinstance(inner, Made):
            inner = Made("" if inner is None else text_of(inner))
            outer.set(node.attr, inner)
        return inner


def settings_of(values):
    settings, visits = [], 0

    def flatten(value, key, depth):
        nonlocal visits
        visits += 1
        refuse_if(len(key) > LONGEST_KEY, f"the key {key[:40]}... has {len(key)} bytes, expected at most {LONGEST_KEY}")
        refuse_if(depth > DEEPEST_KEY, f"nests too deeply at {key[:40]}...")
        refuse_if(visits > MOST_KEYS, f"holds more than {MOST_KEYS} maps, lists and values")
        if isinstance(value, Listed) and key:
            for i, item in enumerate(value.items):
                flatten(item, f"{key}[{i}]", depth + 1)
        elif key and text_of(value):
            settings.append((key, text_of(value)[:LONGEST_VALUE]))
        if isinstance(value, Made):
            before = key and key + "."
            for name, field in value.fields.items():
                flatten(field, before + name, depth + 1)
            for name, texts in value.perhaps.items():
                flatten(Listed("", []), f"?{before}{name}", depth)
                settings.extend((f"?{before}{name}", text) for text in texts)

    for value in values:
        settings += [("begins_with", value.begins)] if value.begins else []
        flatten(value, "", 0)
    return settings


def settings_in(evaluator, text, name, function, folder):
    main = evaluator.read(text, "", folder)

    def outside(whole):
        named = [value for _, value in sorted(main.names.items()) if isinstance(value, Made)]
        return settings_of(named if whole else main.roots)

    def called(one):
        module, found = evaluator.find_function(main, one)
        value, roots = evaluator.follow(module, found, "", [], []) if found else (NOTHING, [])
        return settings_of([value] if isinstance(value, Made) and (value.fields or value.begins) else roots)

    # What a script of Unsloth's calls is given: its functions prepare data.
    if not function and any(module == "unsloth" for module, _ in main.imports.values()):
        return outside(True)
    functions = [node.name for node in main.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    # What is no function here may be another name of one of a module beside it.
    given = {one: called(one) for one in ([function] if function else functions)}
    given = {one: found for one, found in given.items() if found}
    if function and not given:
        others = ", ".join(one for one in functions if called(one)) or "none"
        raise Refused(f"has no function {function} that sets anything, expected one of {others}")
    refuse_if(len(given) > 1, f"sets things in several functions, expected one to be named as in "
                              f"{name}:{next(iter(given), '')} (there are {', '.join(given)})")
    # Whose config it is that a torchtitan module changes, by where it lies or by its import.
    registries = [(module.split(".")[-2], one) for _, (module, one) in sorted(main.imports.items())
                  if module.endswith(".config_registry")]
    lies_in_one = folder and name.endswith("config_registry.py")
    family = [os.path.basename(folder)] if lies_in_one else next(iter(registries), [])
    return [*zip(("module", "config"), family)] + outside(not given) + sum(given.values(), [])


if sys.version_info < (3, 9):
    print("this one is {}.{}".format(*sys.version_info), end="")
    sys.exit(5)
sys.setrecursionlimit(5000)
evaluator = Evaluator()
try:
    code, said = 0, json.dumps(settings_in(evaluator, sys.stdin.buffer.read(), *sys.argv[1:]), ensure_ascii=False)
except (Refused, RecursionError, MemoryError) as error:
    where = evaluator.reading and f"{evaluator.reading}: "
    code, said = 3, where + (str(error) if isinstance(error, Refused) else "nests too deeply")
sys.stdout.buffer.write(said.encode("utf-8", "replace"))
sys.stdout.flush()
os._exit(code)  # without taking deep trees apart
