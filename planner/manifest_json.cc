#include "planner/manifest_json.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"
#include "planner/utf8.h"
#include "planner/validate.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

// An integer past 64 bits, as the text that the document has: a JSON value that no document can hold itself.
constexpr Json::binary_t::subtype_type kHugeInteger = 1;

// Walks one document. The first syntax error and the first integer overflow are kept; readers return neutral values
// after an error, so that each reader stays a straight line.
class Reader {
 public:
  const absl::Status& malformed() const { return malformed_; }
  const absl::Status& overflow() const { return overflow_; }

  Manifest ReadManifest(const Json& j) {
    Manifest m;
    if (!Object(j, "manifest", {"tensors", "source", "destination"},
                {"title", "topology", "ignore", "coupled", "expect"})) {
      return m;
    }
    List(j, "", "tensors", [&](const Json& e, const std::string& p) { m.tensors.push_back(ReadTensor(e, p)); });
    List(j, "", "source", [&](const Json& e, const std::string& p) { m.source.push_back(ReadBuffer(e, p, true)); });
    List(j, "", "destination",
         [&](const Json& e, const std::string& p) { m.destination.push_back(ReadBuffer(e, p, false)); });
    if (j.contains("topology") && Object(j["topology"], "topology", {}, {"source", "destination"})) {
      const Json& t = j["topology"];
      auto side = [&](const char* key, bool source, std::vector<Placement>& out) {
        List(t, "topology.", key,
             [&](const Json& e, const std::string& p) { out.push_back(ReadPlacement(e, p, source)); });
      };
      side("source", true, m.topology.source);
      side("destination", false, m.topology.destination);
    }
    List(j, "", "ignore", [&](const Json& e, const std::string& p) { m.ignore.push_back(Text(e, p)); });
    List(j, "", "coupled", [&](const Json& e, const std::string& p) { m.coupled.push_back(ReadCoupling(e, p)); });
    return m;
  }

 private:
  // Says which rank, buffer and tensor the errors below are about, as far as the object tells, until it ends.
  class Context {
   public:
    Context(Reader* reader, const char* side, const Json& j,
            std::initializer_list<std::pair<const char*, const char*>> names)
        : reader_(reader), outer_(reader->context_) {
      std::string& context = reader->context_;
      if (!j.is_object()) return;
      for (auto [field, what] : names) {
        const auto value = j.find(field);
        if (value == j.end() || !(value->is_string() || value->is_number_integer())) continue;
        absl::StrAppend(
            &context, context.empty() ? "" : ", ", side, *side == 0 ? "" : " ", what, " ",
            value->is_string() ? absl::StrCat("\"", value->get_ref<const std::string&>(), "\"") : value->dump());
        side = "";
      }
    }
    ~Context() { reader_->context_ = outer_; }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

   private:
    Reader* reader_;
    std::string outer_;
  };

  std::string InContext(const std::string& message) const {
    return context_.empty() ? message : absl::StrCat(message, " (", context_, ")");
  }

  void Malformed(const std::string& message) {
    if (malformed_.ok()) malformed_ = Error(ErrorCode::kMalformed, InContext(message));
  }

  // Checks the type and the fields of an object.
  bool Object(const Json& j, const std::string& path, std::initializer_list<const char*> required,
              std::initializer_list<const char*> optional) {
    if (!j.is_object()) {
      Malformed(absl::StrCat(path, " must be an object"));
      return false;
    }
    std::set<std::string> known(required.begin(), required.end());
    bool complete = true;
    for (const std::string& field : known) {
      if (!j.contains(field)) {
        Malformed(absl::StrCat(path, " lacks the field \"", field, "\""));
        complete = false;
      }
    }
    known.insert(optional.begin(), optional.end());
    for (const auto& [field, value] : j.items()) {
      if (!known.contains(field)) {
        Malformed(absl::StrCat(path, " has an unknown field \"", field, "\"; known: ", absl::StrJoin(known, ", ")));
        complete = false;
      }
    }
    return complete;
  }

  template <typename F>
  void List(const Json& parent, const std::string& prefix, const char* key, F&& read) {
    if (!parent.contains(key)) return;
    const Json& list = parent[key];
    std::string path = absl::StrCat(prefix, key);
    if (!list.is_array()) return Malformed(absl::StrCat(path, " must be a list"));
    size_t i = 0;
    for (const Json& element : list) read(element, absl::StrCat(path, "[", i++, "]"));
  }

  std::string Text(const Json& j, const std::string& path) {
    if (j.is_string() && !j.get_ref<const std::string&>().empty()) return j.get<std::string>();
    Malformed(absl::StrCat(path, " must be a string that is not empty"));
    return "";
  }

  Index Integer(const Json& j, const std::string& path) {
    const bool huge = j.is_binary() && j.get_binary().has_subtype();
    if (huge || (j.is_number_unsigned() && j.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
      const std::string digits = huge ? std::string(j.get_binary().begin(), j.get_binary().end()) : j.dump();
      if (overflow_.ok()) {
        overflow_ =
            Error(ErrorCode::kOutOfBounds, InContext(absl::StrCat(path, " is ", digits, ", outside of 64 bits")));
      }
      return digits[0] == '-' ? INT64_MIN : INT64_MAX;
    }
    if (j.is_number_integer()) return j.get<Index>();
    Malformed(absl::StrCat(path, " must be an integer"));
    return 0;
  }

  Extents Integers(const Json& j, const std::string& path) {
    Extents out;
    if (!j.is_array()) {
      Malformed(absl::StrCat(path, " must be a list of integers"));
      return out;
    }
    for (size_t i = 0; i < j.size(); ++i) out.push_back(Integer(j[i], absl::StrCat(path, "[", i, "]")));
    return out;
  }

  int64_t Rank(const Json& j, const std::string& path) {
    Index rank = Integer(j, path);
    if (rank < 0) Malformed(absl::StrCat(path, " is ", rank, "; ranks are not negative"));
    return rank;
  }

  Dtype ReadDtype(const Json& j, const std::string& path) {
    std::string name = Text(j, path);
    if (std::optional<Dtype> dtype = DtypeFromName(name)) return *dtype;
    Malformed(absl::StrCat(path, " \"", name, "\" is no dtype; they are spelled as in safetensors (BF16, F32, ...)"));
    return Dtype::kU8;
  }

  TensorSpec ReadTensor(const Json& j, const std::string& path) {
    const Context context(this, "", j, {{"name", "tensor"}});
    TensorSpec t;
    if (!Object(j, path, {"name", "shape", "dtype"}, {})) return t;
    t.name = Text(j["name"], path + ".name");
    t.shape = Integers(j["shape"], path + ".shape");
    t.dtype = ReadDtype(j["dtype"], path + ".dtype");
    return t;
  }

  Piece ReadPiece(const Json& j, const std::string& path) {
    const Context context(this, "", j, {{"tensor", "tensor"}});
    Piece p;
    if (j.is_object() && j.contains("fill")) {
      if (!Object(j, path, {"fill", "shape", "buffer_offset"}, {})) return p;
      std::string fill = Text(j["fill"], path + ".fill");
      if (fill != "zero" && fill != "keep") {
        Malformed(absl::StrCat(path, ".fill is \"", fill, "\"; it is \"zero\" or \"keep\""));
      }
      p.kind = fill == "zero" ? PieceKind::kZero : PieceKind::kKeep;
    } else {
      if (!Object(j, path, {"tensor", "tensor_offset", "shape", "buffer_offset"}, {"axes", "view"})) return p;
      p.tensor = Text(j["tensor"], path + ".tensor");
      p.tensor_offset = Integers(j["tensor_offset"], path + ".tensor_offset");
      if (j.contains("axes")) {
        for (Index axis : Integers(j["axes"], path + ".axes")) {
          // Validate checks that they are a permutation; here only that they fit an int.
          if (axis < 0 || axis > INT32_MAX) Malformed(absl::StrCat(path, ".axes holds ", axis, ", which is no axis"));
          p.axes.push_back(static_cast<int>(axis));
        }
      }
      if (j.contains("view")) p.view = Integers(j["view"], path + ".view");
    }
    p.shape = Integers(j["shape"], path + ".shape");
    p.buffer_offset = Integers(j["buffer_offset"], path + ".buffer_offset");
    // An empty "axes" of a piece that has axes would read as "same order".
    if (j.contains("axes") && p.axes.empty() && !p.shape.empty()) Malformed(absl::StrCat(path, ".axes is empty"));
    return p;
  }

  Buffer ReadBuffer(const Json& j, const std::string& path, bool source) {
    const Context context(this, source ? "source" : "destination", j, {{"rank", "rank"}, {"buffer", "buffer"}});
    Buffer b;
    bool fields =
        source ? Object(j, path, {"rank", "buffer", "dtype", "shape", "pieces"},
                        {"strides", "storage", "alias_of", "convert"})
               : Object(j, path, {"rank", "buffer", "dtype", "shape", "pieces"}, {"strides", "storage", "alias_of"});
    if (!fields) return b;
    b.rank = Rank(j["rank"], path + ".rank");
    b.name = Text(j["buffer"], path + ".buffer");
    b.dtype = ReadDtype(j["dtype"], path + ".dtype");
    b.shape = Integers(j["shape"], path + ".shape");
    b.strides = j.contains("strides") ? Integers(j["strides"], path + ".strides") : RowMajorStrides(b.shape);
    List(j, path + ".", "pieces", [&](const Json& e, const std::string& p) { b.pieces.push_back(ReadPiece(e, p)); });
    if (j.contains("storage") && Object(j["storage"], path + ".storage", {"id", "offset_bytes"}, {})) {
      b.storage = Storage{Text(j["storage"]["id"], path + ".storage.id"),
                          Integer(j["storage"]["offset_bytes"], path + ".storage.offset_bytes")};
    }
    if (j.contains("alias_of")) b.alias_of = Text(j["alias_of"], path + ".alias_of");
    if (j.contains("convert")) {
      std::string convert = Text(j["convert"], path + ".convert");
      if (convert != "rne") Malformed(absl::StrCat(path, ".convert is \"", convert, "\"; the only one is \"rne\""));
      b.convert_rne = true;
    }
    return b;
  }

  Placement ReadPlacement(const Json& j, const std::string& path, bool source) {
    const Context context(this, source ? "source" : "destination", j, {{"rank", "rank"}});
    Placement p;
    bool fields = source ? Object(j, path, {"rank"}, {"host", "domain"})
                         : Object(j, path, {"rank"}, {"host", "domain", "engine"});
    if (!fields) return p;
    p.rank = Rank(j["rank"], path + ".rank");
    if (j.contains("host")) p.host = Text(j["host"], path + ".host");
    if (j.contains("domain")) p.domain = Text(j["domain"], path + ".domain");
    if (j.contains("engine")) p.engine = Text(j["engine"], path + ".engine");
    return p;
  }

  Coupling ReadCoupling(const Json& j, const std::string& path) {
    const Context context(this, "coupled", j, {{"weight", "weight"}, {"scale", "scale"}});
    Coupling c;
    if (!Object(j, path, {"weight", "scale", "block"}, {})) return c;
    c.weight = Text(j["weight"], path + ".weight");
    c.scale = Text(j["scale"], path + ".scale");
    c.block = Integers(j["block"], path + ".block");
    return c;
  }

  std::string context_;
  absl::Status malformed_;
  absl::Status overflow_;
};

// Builds the document, and refuses what the library's own reader would hide or choke on: duplicate keys (silently
// dropped), deep nesting, text that is not UTF-8 (it cannot be written again).
class DocumentReader {
 public:
  explicit DocumentReader(Json* document) : dom_(*document, false) {}

  const absl::Status& status() const { return status_; }

  bool null() { return dom_.null(); }
  bool boolean(bool value) { return dom_.boolean(value); }
  bool number_integer(Json::number_integer_t value) { return dom_.number_integer(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return dom_.number_unsigned(value); }
  bool number_float(Json::number_float_t value, const std::string& text) {
    // The library turns integers past 64 bits into doubles.
    if (!IsInteger(text)) return dom_.number_float(value, text);
    Json::binary_t digits(std::vector<uint8_t>(text.begin(), text.end()), kHugeInteger);
    return dom_.binary(digits);
  }
  bool string(std::string& value) { return Utf8(value) && dom_.string(value); }
  bool binary(Json::binary_t& value) { return dom_.binary(value); }
  bool start_object(size_t elements) {
    keys_.emplace_back();
    return Open() && dom_.start_object(elements);
  }
  bool key(std::string& key) {
    if (!Utf8(key)) return false;
    if (!keys_.back().insert(key).second) {
      return Fail(ErrorCode::kMalformed, absl::StrCat("the key \"", key, "\" stands twice in one object"));
    }
    return dom_.key(key);
  }
  bool end_object() {
    keys_.pop_back();
    --depth_;
    return dom_.end_object();
  }
  bool start_array(size_t elements) { return Open() && dom_.start_array(elements); }
  bool end_array() {
    --depth_;
    return dom_.end_array();
  }
  bool parse_error(size_t, const std::string& token, const Json::exception& e) {
    constexpr int kNumberOverflow = 406;  // past a double
    return Fail(e.id == kNumberOverflow && IsInteger(token) ? ErrorCode::kOutOfBounds : ErrorCode::kMalformed,
                absl::StrCat("not a manifest: ", e.what()));
  }

 private:
  static bool IsInteger(absl::string_view text) {
    return !text.empty() && text.find_first_not_of("-0123456789") == absl::string_view::npos;
  }

  bool Fail(ErrorCode code, const std::string& message) {
    if (status_.ok()) status_ = Error(code, message);
    return false;
  }

  bool Utf8(const std::string& text) { return IsUtf8(text) || Fail(ErrorCode::kMalformed, "text that is not UTF-8"); }

  bool Open() {
    constexpr int kMaxDepth = 64;
    return ++depth_ <= kMaxDepth || Fail(ErrorCode::kMalformed, "nested more than 64 levels deep");
  }

  nlohmann::detail::json_sax_dom_parser<Json> dom_;
  std::vector<std::set<std::string>> keys_;  // of the open objects
  int depth_ = 0;
  absl::Status status_;
};

Json ToJson(const Piece& p) {
  Json j = {{"shape", p.shape}, {"buffer_offset", p.buffer_offset}};
  if (p.kind == PieceKind::kTensor) {
    j["tensor"] = p.tensor;
    j["tensor_offset"] = p.tensor_offset;
    if (!p.axes.empty()) j["axes"] = p.axes;
    if (p.view) j["view"] = *p.view;
  } else {
    j["fill"] = p.kind == PieceKind::kZero ? "zero" : "keep";
  }
  return j;
}

Json ToJson(const Buffer& b) {
  Json j = {{"rank", b.rank}, {"buffer", b.name}, {"dtype", std::string(DtypeName(b.dtype))}, {"shape", b.shape}};
  if (b.strides != RowMajorStrides(b.shape)) j["strides"] = b.strides;
  Json pieces = Json::array();
  for (const Piece& p : b.pieces) pieces.push_back(ToJson(p));
  j["pieces"] = std::move(pieces);
  if (b.storage) j["storage"] = {{"id", b.storage->id}, {"offset_bytes", b.storage->offset_bytes}};
  if (b.alias_of) j["alias_of"] = *b.alias_of;
  if (b.convert_rne) j["convert"] = "rne";
  return j;
}

Json ToJson(const Placement& p) {
  Json j = {{"rank", p.rank}};
  if (!p.host.empty()) j["host"] = p.host;
  if (!p.domain.empty()) j["domain"] = p.domain;
  if (!p.engine.empty()) j["engine"] = p.engine;
  return j;
}

Json ToJson(const TensorSpec& t) {
  return {{"name", t.name}, {"shape", t.shape}, {"dtype", std::string(DtypeName(t.dtype))}};
}

Json ToJson(const Coupling& c) { return {{"weight", c.weight}, {"scale", c.scale}, {"block", c.block}}; }

template <typename T>
Json ListToJson(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(ToJson(item));
  return list;
}

Json ToJson(const Manifest& m) {
  Json j = {
      {"tensors", ListToJson(m.tensors)}, {"source", ListToJson(m.source)}, {"destination", ListToJson(m.destination)}};
  if (!m.topology.source.empty() || !m.topology.destination.empty()) {
    j["topology"] = {{"source", ListToJson(m.topology.source)}, {"destination", ListToJson(m.topology.destination)}};
  }
  if (!m.ignore.empty()) j["ignore"] = m.ignore;
  if (!m.coupled.empty()) j["coupled"] = ListToJson(m.coupled);
  return j;
}

}  // namespace

absl::StatusOr<Manifest> ParseManifest(absl::string_view json) {
  if (absl::StrContains(json, '\0')) {
    // The library takes it for the end of the text.
    return Error(ErrorCode::kMalformed, absl::StrCat("not a manifest: a NUL byte at offset ", json.find('\0')));
  }
  Json document;
  DocumentReader parser(&document);
  if (!Json::sax_parse(json.begin(), json.end(), &parser)) {
    return parser.status().ok() ? Error(ErrorCode::kMalformed, "not a manifest") : parser.status();
  }
  Reader reader;
  Manifest m = reader.ReadManifest(document);
  HR_RETURN_IF_ERROR(reader.malformed());
  if (!reader.overflow().ok()) {
    // Codes that stand before out_of_bounds come first; numbers that do not fit are at the limits here.
    const absl::Status earlier = Validate(m);
    const bool first = HasCode(earlier, ErrorCode::kMalformed) || HasCode(earlier, ErrorCode::kUnknownTensor) ||
                       HasCode(earlier, ErrorCode::kShapeMismatch);
    return first ? earlier : reader.overflow();
  }
  return m;
}

std::string ManifestToJson(const Manifest& manifest) { return ToJson(manifest).dump(); }

}  // namespace headrace
