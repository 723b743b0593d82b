// Files of torch.save: what they hold, and the statistics of the tensors among it. torch is not
// needed, and nothing of a file is executed (pickle.h).
#ifndef STATCOLLECT_CLIENT_FORMATS_TORCH_FILE_H_
#define STATCOLLECT_CLIENT_FORMATS_TORCH_FILE_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/formats/observation.h"
#include "client/formats/pickle.h"
#include "client/formats/source.h"
#include "client/formats/zip.h"
#include "common/status.h"

namespace statcollect::client::formats {

struct StoredTensor;

class TorchFile {
 public:
  // `file` must outlive it. kInvalidArgument, with the file: not a complete file of torch 1.6 or
  // later.
  static Result<TorchFile> Open(ByteSource& file);

  const Pickle& content() const { return content_; }

  // What VisitTensors gives: the way to it through containers, joined with dots; empty: the value
  // itself.
  struct Tensor {
    std::string path;
    Layout layout;
    TensorStats stats;
    std::vector<double> sketch;
  };
  struct Visitor {
    std::function<Status(Tensor)> tensor;
    std::function<Status(const std::string& path, double number)> number;  // an int or a float
    std::function<void(const std::string& kind)> other;  // "str", "dtype qint8", "os.system"
  };
  // Each value in `value`, in its order. kInvalidArgument: a tensor that the file does not hold, or
  // more than 2^20 values.
  Status Visit(const Pickle::Value& value, const Visitor& visitor);

 private:
  explicit TorchFile(ByteSource& file) : file_(file) {}
  Status VisitAt(const Pickle::Value& value, const std::string& path, int depth,
                 const Visitor& visitor);
  Status VisitItems(const Pickle::Value& container, const std::string& path, int depth,
                    const Visitor& visitor);
  Status VisitCall(const std::string& called, const Pickle::Value& arguments,
                   const std::string& path, int depth, const Visitor& visitor);
  Status VisitTensor(const StoredTensor& tensor, const std::string& path, const Visitor& visitor);

  ByteSource& file_;
  std::string folder_;  // of the members: "archive/"
  bool big_endian_ = false;
  std::map<std::string, ZipMember> members_;
  Pickle content_;
  std::size_t visited_ = 0;
};

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_TORCH_FILE_H_
