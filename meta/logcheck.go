package meta

func checkLog(fs FS, name string) error { return nil }
