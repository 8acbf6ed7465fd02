#include "planner/manifest_json.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

// Walks one document. The first syntax error and the first integer overflow are kept; readers return neutral values
// after an error, so that each reader stays a straight line.
class Reader {
 public:
  absl::Status status() const {
    if (!malformed_.ok()) return malformed_;
    return overflow_;
  }

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
        List(t, "topology.", key, [&](const Json& e, const std::string& p) {
          out.push_back(ReadPlacement(e, p, source));
        });
      };
      side("source", true, m.topology.source);
      side("destination", false, m.topology.destination);
    }
    List(j, "", "ignore", [&](const Json& e, const std::string& p) { m.ignore.push_back(Text(e, p)); });
    List(j, "", "coupled", [&](const Json& e, const std::string& p) { m.coupled.push_back(ReadCoupling(e, p)); });
    return m;
  }

 private:
  void Malformed(const std::string& message) {
    if (malformed_.ok()) malformed_ = Error(ErrorCode::kMalformed, message);
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
    // The JSON reader turns integers past 64 bits into doubles.
    const bool huge = (j.is_number_unsigned() && j.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) ||
                      (j.is_number_float() && std::abs(j.get<double>()) >= 9223372036854775808.0);
    if (huge) {
      if (overflow_.ok()) {
        overflow_ = Error(ErrorCode::kOutOfBounds, absl::StrCat(path, " is ", j.dump(), ", outside of 64 bits"));
      }
      return 0;
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
    TensorSpec t;
    if (!Object(j, path, {"name", "shape", "dtype"}, {})) return t;
    t.name = Text(j["name"], path + ".name");
    t.shape = Integers(j["shape"], path + ".shape");
    t.dtype = ReadDtype(j["dtype"], path + ".dtype");
    return t;
  }

  Piece ReadPiece(const Json& j, const std::string& path) {
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
    Buffer b;
    bool fields = source ? Object(j, path, {"rank", "buffer", "dtype", "shape", "pieces"},
                                  {"strides", "storage", "alias_of", "convert"})
                         : Object(j, path, {"rank", "buffer", "dtype", "shape", "pieces"},
                                  {"strides", "storage", "alias_of"});
    if (!fields) return b;
    b.rank = Rank(j["rank"], path + ".rank");
    b.name = Text(j["buffer"], path + ".buffer");
    b.dtype = ReadDtype(j["dtype"], path + ".dtype");
    b.shape = Integers(j["shape"], path + ".shape");
    if (j.contains("strides")) {
      b.strides = Integers(j["strides"], path + ".strides");
    } else {
      b.strides = CheckedRowMajor(b.shape, path);
    }
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

  // Row-major strides of a shape that is not validated yet.
  Extents CheckedRowMajor(const Extents& shape, const std::string& path) {
    Extents strides(shape.size());
    Index stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = stride;
      if (__builtin_mul_overflow(stride, std::max<Index>(shape[i], 1), &stride)) {
        if (overflow_.ok()) {
          overflow_ = Error(ErrorCode::kOutOfBounds,
                            absl::StrCat(path, ".shape [", absl::StrJoin(shape, ", "), "] has over 2^63 elements"));
        }
        stride = 1;
      }
    }
    return strides;
  }

  Placement ReadPlacement(const Json& j, const std::string& path, bool source) {
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
    Coupling c;
    if (!Object(j, path, {"weight", "scale", "block"}, {})) return c;
    c.weight = Text(j["weight"], path + ".weight");
    c.scale = Text(j["scale"], path + ".scale");
    c.block = Integers(j["block"], path + ".block");
    return c;
  }

  absl::Status malformed_;
  absl::Status overflow_;
};

// Refuses duplicate keys, which the document model would silently drop, and absurd nesting.
class DuplicateKeys {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key && !open_.back().insert(parsed.get<std::string>()).second) {
      if (duplicate_.empty()) duplicate_ = parsed.get<std::string>();
    }
    too_deep_ |= depth > 64;
    return true;
  }

  absl::Status status() const {
    if (too_deep_) return Error(ErrorCode::kMalformed, "nested more than 64 levels deep");
    if (duplicate_.empty()) return absl::OkStatus();
    return Error(ErrorCode::kMalformed, absl::StrCat("the key \"", duplicate_, "\" stands twice in one object"));
  }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
  bool too_deep_ = false;
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
  Json j = {{"tensors", ListToJson(m.tensors)},
            {"source", ListToJson(m.source)},
            {"destination", ListToJson(m.destination)}};
  if (!m.topology.source.empty() || !m.topology.destination.empty()) {
    j["topology"] = {{"source", ListToJson(m.topology.source)}, {"destination", ListToJson(m.topology.destination)}};
  }
  if (!m.ignore.empty()) j["ignore"] = m.ignore;
  if (!m.coupled.empty()) j["coupled"] = ListToJson(m.coupled);
  return j;
}

absl::StatusOr<Manifest> FromJson(const Json& j) {
  Reader reader;
  Manifest m = reader.ReadManifest(j);
  HR_RETURN_IF_ERROR(reader.status());
  return m;
}

}  // namespace

absl::StatusOr<Manifest> ParseManifest(absl::string_view json) {
  DuplicateKeys duplicates;
  Json j;
  try {
    j = Json::parse(json.begin(), json.end(), std::ref(duplicates));
  } catch (const Json::exception& e) {
    return Error(ErrorCode::kMalformed, absl::StrCat("not JSON: ", e.what()));
  }
  HR_RETURN_IF_ERROR(duplicates.status());
  return FromJson(j);
}

absl::StatusOr<Manifest> ParseManifestCbor(absl::string_view cbor) {
  Json j = Json::from_cbor(cbor.begin(), cbor.end(), /*strict=*/true, /*allow_exceptions=*/false);
  if (j.is_discarded()) return Error(ErrorCode::kMalformed, "not a manifest in CBOR");
  return FromJson(j);
}

std::string ManifestToJson(const Manifest& manifest) { return ToJson(manifest).dump(); }

std::string ManifestToCbor(const Manifest& manifest) {
  std::string out;
  Json::to_cbor(ToJson(manifest), nlohmann::detail::output_adapter<char>(out));
  return out;
}

}  // namespace headrace
