# find_package(t2r): t2r::t2r is the shared library, t2r::static the static one. Where ONNX Runtime is not in a usual
# place, T2R_ONNXRUNTIME_ROOT or T2R_ONNXRUNTIME_LIBRARY says where, as when this was built.
include(CMakeFindDependencyMacro)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
find_dependency(Threads)
find_dependency(T2rOnnxRuntime)
list(REMOVE_ITEM CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/t2rTargets.cmake)
