# xbatcher over dask hangs in workers after one sample in the main process
#
# xbatcher 0.4.0, dask 2026.8.0. The dataset has chunks, so dask reads them by a pool of threads. A
# look at `dataset[0]` starts the pool in the main process, forked workers do not inherit its
# threads, and they wait for them. Expected: the batches, as without that look.
#
# What helps: `dask.config.set(scheduler="synchronous")`, or workers that are not forked.

cat > main.py <<'END'
import dask, netCDF4, numpy, xarray, xbatcher
from torch.utils.data import DataLoader
from xbatcher.loaders.torch import MapDataset

def batches():
    return len(list(DataLoader(dataset, num_workers=2, timeout=20, multiprocessing_context="fork")))

xarray.Dataset({"x": (("t", "a"), numpy.zeros((64, 8)))}).to_netcdf("x.nc", engine="netcdf4")
opened = xarray.open_dataset("x.nc", engine="netcdf4", chunks={"t": 4})["x"]
dataset = MapDataset(xbatcher.BatchGenerator(opened, {"t": 4, "a": 8}))
print(batches(), "batches")
dataset[0]
try:
    print(batches(), "batches")
except RuntimeError as error:
    print(error)
END
python -W ignore main.py

# It prints:
# 16 batches
# DataLoader timed out after 20 seconds
